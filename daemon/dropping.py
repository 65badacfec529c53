"""Decisions about what orchestrators have dropped: an attempt that they abandon, or all of a queue."""

from __future__ import annotations

from forebay.wire import Abandon, Event, MicroBatchState, Reached, RefusalCode, Reset, WasReset, printable

from .actions import Address, Level, Reply
from .book import Book, who
from .end_reasons import EndReason
from .micro_batch import MicroBatch


class Dropping:
    """Drops what the trainer does not hold.

    Args:
        book: The shared books.
    """

    def __init__(self, book: Book) -> None:
        self._book = book

    def abandon(self, sender: Address, request: Abandon, now: float) -> None:
        """Gives up an attempt, unless the trainer holds it already."""
        batch = self._book.find(request.queue, request.key)
        if batch is None or batch.attempt != request.attempt:
            # Nobody's mistake: a client whose offer was refused abandons what a repeat of it may have begun.
            self._book.out.do(Reply(sender, Reached(id=request.id, state=MicroBatchState.DROPPED)))
            return
        if (request.queue, request.key) in self._book.batches and not self._book.is_with_trainer(batch):
            self._book.drop(batch, now, "abandoned by its sender", EndReason.ABANDONED)
        self._book.out.do(Reply(sender, Reached(id=request.id, state=batch.state)))

    def reset(self, sender: Address, request: Reset, now: float) -> None:
        """Drops all of a queue that the trainer does not hold, and what it holds once that comes back."""
        dropped = []
        for batch in self._book.batches.values():
            if batch.queue == request.queue and self._book.is_with_trainer(batch):
                self._mark(batch)
            elif batch.queue == request.queue:
                dropped.append(batch)
        for batch in dropped:
            self._drop(batch, now)
        self._forget_version(request.queue)
        if self._book.is_name(request.queue):
            by = who(self._book.peers.find(sender))
            self._book.out.log(Level.WARNING, Event.RESET, queue=request.queue, dropped=len(dropped), **by)
        self._book.out.do(Reply(sender, WasReset(id=request.id, dropped=len(dropped))))

    def _mark(self, batch: MicroBatch) -> None:
        if batch.slot >= 0 and not batch.was_reset:  # what is on the device never comes back
            self._book.outcomes.record(batch, was_reset=True)
        batch.was_reset = True

    def _drop(self, batch: MicroBatch, now: float) -> None:
        if not batch.was_published:
            words = f"queue {printable(batch.queue)!r} was reset"
            self._book.outcomes.refuse_attempt(batch, RefusalCode.DROPPED, words)
        self._book.drop(batch, now, "the queue was reset", EndReason.RESET)

    def _forget_version(self, name: str) -> None:
        """Forgets a queue's version: what comes next may be older, as whoever goes back to a checkpoint resets."""
        queue = self._book.queues.find(name)
        if queue is not None:
            queue.policy_version = None
            self._book.queues.forget_if_unused(name)
