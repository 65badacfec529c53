"""Decisions about slots that are filled: granting one, publishing it, and taking it back from a silent sender."""

from __future__ import annotations

import secrets

from forebay.wire import Arrivals, MicroBatchEvent, Staged, cut_spans, place_leaves

from .actions import Reply, WriteBody, WriteLoan
from .book import Book
from .end_reasons import EndReason
from .lending import Lending
from .micro_batch import MicroBatch


class Filling:
    """From a micro-batch's slot until that is READY.

    Args:
        book: The shared books.
        lending: Lends what was published to a trainer that waits for it.
    """

    def __init__(self, book: Book, lending: Lending) -> None:
        self._book = book
        self._lending = lending

    def grant(self, batch: MicroBatch, now: float) -> None:
        """Has a micro-batch's bytes written to its slot, which is large enough: those that came, or chunks."""
        book = self._book
        book.out.do(WriteLoan(batch.slot, batch.generation, batch.envelope, batch.body_bytes))
        if batch.body:
            book.out.do(WriteBody(batch.slot, batch.body))
            book.out.counters["eager_body_bytes"] += len(batch.body)
            batch.body = b""
            book.move(batch, MicroBatchEvent.GRANT, now)
            self._publish(batch, now)
            return
        arrivals = self._arrivals_of(batch)
        batch.deadline = now + book.settings.fill_lease_s
        book.slot_moves.fill(batch, arrivals)
        book.move(batch, MicroBatchEvent.GRANT, now)
        self.send_grant(batch)
        if arrivals.is_complete:
            self._publish(batch, now)

    def _arrivals_of(self, batch: MicroBatch) -> Arrivals:
        # Not before: an offer that only waits shall not cost memory by the bytes that it declares.
        offsets, _ = place_leaves(batch.leaf_bytes)
        spans = cut_spans(batch.leaf_bytes, offsets, self._book.settings.limits.chunk_bytes)
        return Arrivals(batch.slot, batch.generation, secrets.randbits(64), spans)

    def send_grant(self, batch: MicroBatch) -> None:
        """Tells a sender what of its micro-batch is missing."""
        if batch.arrivals is None or batch.sender is None:
            return
        chunk_bytes = self._book.settings.limits.chunk_bytes
        grant = batch.arrivals.granted(request_id=batch.offer_id, attempt=batch.attempt, chunk_bytes=chunk_bytes)
        self._book.out.do(Reply(batch.sender, grant))

    def go_on(self, batch: MicroBatch, now: float) -> None:
        """Tells a sender that is back what is missing, and gives it a new lease."""
        batch.deadline = now + self._book.settings.fill_lease_s
        self.send_grant(batch)

    def filled(self, arrivals: Arrivals, now: float) -> None:
        """Hears that all of a micro-batch lies in its slot; it may be over by then."""
        batch = self._book.slot_moves.filling.get(arrivals.slot)
        if batch is not None and batch.arrivals is arrivals:
            self._publish(batch, now)

    def _publish(self, batch: MicroBatch, now: float) -> None:
        self._book.publish(batch, now)
        # The trainer first: it waits, and the sender has nothing to do with the answer but go on.
        sender, staged = batch.sender, Staged(id=batch.offer_id, state=batch.state)
        self._lending.lend(self._book.queues.of(batch.queue), now)
        if sender is not None:
            self._book.out.do(Reply(sender, staged))

    def expire(self, now: float) -> None:
        """Takes back slots whose sender fell silent."""
        for batch in list(self._book.slot_moves.filling.values()):
            if batch.silent_at(self._book.settings.fill_lease_s) <= now:
                batch.fell_silent = True
                self._book.drop(batch, now, "the sender fell silent while filling", EndReason.SILENT)

    def deadlines(self) -> list[float]:
        """Returns when senders that say nothing more are silent for too long."""
        lease_s = self._book.settings.fill_lease_s
        return [batch.silent_at(lease_s) for batch in self._book.slot_moves.filling.values()]
