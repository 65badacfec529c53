"""Decisions about an operator's orders: what comes in, what goes out, and what is to be forgotten."""

from __future__ import annotations

from forebay.wire import (
    Drain,
    Event,
    Forget,
    Forgotten,
    MicroBatchState,
    Pause,
    RefusalCode,
    Resume,
    Valves,
    printable,
)

from .actions import Address, Level, Reply
from .book import Book, who
from .end_reasons import EndReason
from .lending import Lending
from .waiting_line import WaitingLine

_FORGOTTEN = "an operator had it forgotten"


class Operating:
    """The operators' side of the ledger.

    Args:
        book: The shared books.
        line: Where offers wait for a slot.
        lending: Lends what was held back.
    """

    def __init__(self, book: Book, line: WaitingLine, lending: Lending) -> None:
        self._book = book
        self._line = line
        self._lending = lending

    # What comes in, and what goes out.

    def drain(self, sender: Address, request: Drain, now: float) -> None:
        """Takes nothing in any more; what is there is trained."""
        book = self._book
        if not book.is_drained:
            book.is_drained = True
            book.out.log(Level.WARNING, Event.DRAIN, by="an operator", **self._who(sender))
            self._line.drain(now)
        self._answer(sender, request.id)

    def pause(self, sender: Address, request: Pause) -> None:
        """Lends nothing more of a queue, or of any."""
        book = self._book
        if request.queue and not book.is_name(request.queue):
            words = f"a queue's name needs 1 to {book.settings.limits.max_key_bytes} bytes"
            book.out.refuse(sender, request.id, RefusalCode.BAD_REQUEST, words)
            return
        if len(book.paused) >= book.settings.max_queues:
            words = f"{len(book.paused)} queues are paused already, max_queues; pause all of them"
            book.out.refuse(sender, request.id, RefusalCode.TOO_MANY, words)
            return
        if request.queue not in book.paused:
            book.paused.add(request.queue)
            book.out.log(Level.WARNING, Event.PAUSE, queue=request.queue, **self._who(sender))
        self._answer(sender, request.id)

    def resume(self, sender: Address, request: Resume, now: float) -> None:
        """Lets it flow again: all, or one queue that was paused."""
        book = self._book
        resumed = {request.queue} & book.paused if request.queue else set(book.paused)
        is_news = bool(resumed) or (book.is_drained and not request.queue)
        book.paused -= resumed
        if not request.queue:
            book.is_drained = False
        if is_news:
            book.out.log(Level.WARNING, Event.RESUME, queue=request.queue, **self._who(sender))
        for queue in book.queues:
            self._lending.lend(queue, now)
        self._answer(sender, request.id)

    def _answer(self, sender: Address, request_id: int) -> None:
        book = self._book
        paused = tuple(sorted(book.paused - {""}))
        valves = Valves(id=request_id, draining=book.draining, all_paused="" in book.paused, paused=paused)
        book.out.do(Reply(sender, valves))

    def _who(self, sender: Address) -> dict[str, object]:
        return who(self._book.peers.find(sender))

    # What is to be forgotten.

    def forget(self, sender: Address, request: Forget, now: float) -> None:
        """Drops a micro-batch that no trainer has, and lets its key be used as if it were new."""
        book = self._book
        batch = book.find(request.queue, request.key)
        key = printable(request.key)
        if batch is None:
            words = f"no micro-batch {key!r} in queue {printable(request.queue)!r}: there is nothing to forget"
            book.out.refuse(sender, request.id, RefusalCode.UNKNOWN_KEY, words)
            return
        is_alive = (request.queue, request.key) in book.batches
        if is_alive and book.is_with_trainer(batch):
            words = f"the trainer of queue {printable(request.queue)!r} has {key!r}; wait, or end the trainer"
            book.out.refuse(sender, request.id, RefusalCode.IN_USE, words)
            return
        if batch.state in (MicroBatchState.CONSUMED, MicroBatchState.LOST) and not request.trained:
            words = f"{key!r} was on the device; forgotten, it could be trained twice; say so (--trained)"
            book.out.refuse(sender, request.id, RefusalCode.CONSUMED, words)
            return
        state = batch.state
        if is_alive:
            if not batch.was_published:
                book.outcomes.refuse_attempt(batch, RefusalCode.DROPPED, _FORGOTTEN)
            book.drop(batch, now, _FORGOTTEN, EndReason.FORGOTTEN)
        book.outcomes.forget(batch)
        about = {"queue": request.queue, "key": request.key, "was": state.value}
        book.out.log(Level.WARNING, Event.FORGET, **about, **self._who(sender))
        book.out.do(Reply(sender, Forgotten(id=request.id, state=state)))
