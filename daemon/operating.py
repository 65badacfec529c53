"""Decisions about an operator's orders: what comes in, what goes out, and what is to be forgotten."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

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
from .micro_batch import MicroBatch
from .waiting_line import WaitingLine

_FORGOTTEN: Final = "an operator had it forgotten"
_REMEMBERED_FORGETS: Final = 64
"""Operators whose last order to forget is known when it is repeated; each waits for one answer at a time."""


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
        self._forgets: OrderedDict[Address, tuple[Forget, Forgotten]] = OrderedDict()

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
        by_name = book.paused - {""}
        if request.queue and request.queue not in by_name and len(by_name) >= book.settings.max_queues:
            words = f"{len(by_name)} queues are paused already, max_queues; pause all of them"
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
        before = self._forgets.get(sender)
        if before is not None and before[0] == request:
            # Its answer was lost. To forget again could hit what was staged under the key since.
            book.out.do(Reply(sender, before[1]))
            return
        batch = book.find(request.queue, request.key)
        refusal = self._reason_to_keep(batch, request)
        if refusal is not None:
            book.out.refuse(sender, request.id, *refusal, level=Level.INFO)
            return
        assert batch is not None
        state = batch.state
        self._forget(batch, now)
        about = {"queue": request.queue, "key": request.key, "was": state.value}
        book.out.log(Level.WARNING, Event.FORGET, **about, **self._who(sender))
        self._answer_forget(sender, request, Forgotten(id=request.id, state=state))

    def _reason_to_keep(self, batch: MicroBatch | None, request: Forget) -> tuple[RefusalCode, str] | None:
        key, queue = printable(request.key), printable(request.queue)
        if batch is None:
            return (
                RefusalCode.UNKNOWN_KEY,
                f"no micro-batch {key!r} in queue {queue!r}: there is nothing to forget",
            )
        if self._is_alive(batch) and self._book.is_with_trainer(batch):
            return RefusalCode.IN_USE, f"the trainer of queue {queue!r} has {key!r}; wait, or end the trainer"
        if batch.state in (MicroBatchState.CONSUMED, MicroBatchState.LOST) and not request.trained:
            words = f"{key!r} was on the device; forgotten, it could be trained twice; say so (--trained)"
            return RefusalCode.CONSUMED, words
        return None

    def _forget(self, batch: MicroBatch, now: float) -> None:
        outcomes = self._book.outcomes
        if self._is_alive(batch):
            if not batch.was_published:
                outcomes.refuse_attempt(batch, RefusalCode.DROPPED, _FORGOTTEN)
            self._book.drop(batch, now, _FORGOTTEN, EndReason.FORGOTTEN)
        outcomes.forget(batch)

    def _is_alive(self, batch: MicroBatch) -> bool:
        return self._book.batches.get((batch.queue, batch.key)) is batch

    def _answer_forget(self, sender: Address, request: Forget, answer: Forgotten) -> None:
        self._forgets[sender] = request, answer
        self._forgets.move_to_end(sender)
        if len(self._forgets) > _REMEMBERED_FORGETS:
            self._forgets.popitem(last=False)
        self._book.out.do(Reply(sender, answer))
