"""Decisions about what trainers are lent, in which order, and what they give back."""

from __future__ import annotations

from forebay.wire import (
    GONE,
    Done,
    Finished,
    KeyGone,
    Lend,
    MicroBatchEvent,
    MicroBatchState,
    Promoted,
    RefusalCode,
    Want,
    printable,
)

from .actions import Address, Reply
from .book import Book
from .end_reasons import EndReason
from .micro_batch import MicroBatch
from .on_device import Told, are_names, learn_on_device, why_too_many
from .staleness import Staleness
from .train_queue import Attachment, TrainQueue


class Lending:
    """The trainers' side of the ledger, while they are attached.

    Args:
        book: The shared books.
        staleness: Tells what may not be lent.
    """

    def __init__(self, book: Book, staleness: Staleness) -> None:
        self._book = book
        self._staleness = staleness

    # Lending.

    def want(self, address: Address, request: Want, now: float) -> None:
        """Notes what a trainer waits for and lends what there is."""
        found = self._book.attachments.of(address, request.holder, request.id)
        if found is None:
            return
        queue, attachment = found
        attachment.credit_total = max(attachment.credit_total, request.credit_total)
        attachment.wanted_keys = request.keys
        for key in request.keys:
            batch = self._book.find(queue.name, key)
            if batch is not None and (batch.state in GONE or batch.state is MicroBatchState.CONSUMED):
                reason = batch.reason or "it was trained already"
                gone = KeyGone(key=key, state=batch.state, reason=reason, stale=batch.is_stale)
                self._book.out.do(Reply(address, gone))
        self.lend(queue, now)

    def lend(self, queue: TrainQueue, now: float) -> None:
        """Lends READY slots for as long as the trainer waits for some; what is stale is left to the next tick."""
        attachment = queue.attachment
        if attachment is not None and not self._book.is_paused(queue.name):
            self._lend(queue, attachment, now)
        if attachment is not None:
            attachment.asks_since = (attachment.asks_since or now) if attachment.asks else 0.0

    def _lend(self, queue: TrainQueue, attachment: Attachment, now: float) -> None:
        while (batch := queue.next_to_lend(lambda batch: self._staleness.is_fresh(batch, now))) is not None:
            on_credit = batch.key not in attachment.wanted_keys
            attachment.wanted_keys = tuple(key for key in attachment.wanted_keys if key != batch.key)
            attachment.lent_total += on_credit
            self._book.lend(batch, attachment, now)
            if attachment.asks_since:
                self._book.measures.trainer_wait_s.observe(now - attachment.asks_since)
                attachment.asks_since = 0.0
            attachment.lent[batch.slot] = batch
            self._send_lend(attachment, batch, now, on_credit=on_credit)

    def lend_again(self, attachment: Attachment, held: set[tuple[int, int]], now: float) -> None:
        """Repeats lends that the trainer does not know of: their message was lost.

        Args:
            attachment: The trainer.
            held: (slot, generation) of those that it knows of.
            now: Monotonic second.
        """
        for batch in attachment.lent.values():
            if (batch.slot, batch.generation) not in held:
                self._send_lend(attachment, batch, now, on_credit=False)

    def _send_lend(self, attachment: Attachment, batch: MicroBatch, now: float, *, on_credit: bool) -> None:
        if attachment.address is None:
            return
        lend = Lend(
            slot=batch.slot,
            generation=batch.generation,
            key=batch.key,
            file_bytes=self._book.slots[batch.slot].slot_bytes,
            on_credit=on_credit,
            expires_s=self._staleness.expires_s(batch, now),
        )
        self._book.out.do(Reply(attachment.address, lend))

    # Giving back.

    def promoted(self, address: Address, request: Promoted, now: float) -> None:
        """Hears that a slot's bytes are on the device, which frees the slot."""
        found = self._book.attachments.of(address, request.holder, request.id)
        if found is None:
            return
        _, attachment = found
        batch = self._lent(attachment, request.slot, request.generation)
        if batch is not None:
            if words := why_too_many(self._book, attachment, [batch.key]):
                self._book.out.refuse(address, request.id, RefusalCode.TOO_MANY, words)
                return
            self._release(attachment, batch, now)
            attachment.on_device[batch.key] = batch
            self._book.move(batch, MicroBatchEvent.PROMOTE, now)
            self._book.outcomes.record(batch, holder=attachment.holder)
        self._book.out.do(Reply(address, Done(id=request.id)))

    def finished(self, address: Address, request: Finished, now: float) -> None:
        """Hears that a micro-batch is consumed or given up, which frees its slot if it still has one."""
        found = self._book.attachments.of(address, request.holder, request.id)
        if found is None:
            return
        if not are_names(self._book, request.key, request.attempt):
            words = f"key and attempt need at most {self._book.settings.limits.max_key_bytes} bytes"
            self._book.out.refuse(address, request.id, RefusalCode.BAD_REQUEST, words)
            return
        queue, attachment = found
        if request.slot < 0 and _is_lent(attachment, request):
            # Its release was lost. Both are said again, in order, until they are confirmed; to confirm this one
            # now would leave the key on the device for ever.
            return
        self._end(queue, attachment, request, now)
        self._book.out.do(Reply(address, Done(id=request.id)))

    def _end(self, queue: TrainQueue, attachment: Attachment, told: Finished, now: float) -> None:
        batch = self._lent(attachment, told.slot, told.generation) if told.slot >= 0 else None
        if batch is not None:
            self._release(attachment, batch, now)
        elif not told.reason and told.key not in attachment.on_device:
            trained = Told(told.key, told.attempt, is_trained=True)
            learn_on_device(self._book, queue, attachment, trained, now)
        batch = batch or attachment.on_device.pop(told.key, None)
        if batch is not None:
            self._finish(batch, told, now)

    def _finish(self, batch: MicroBatch, told: Finished, now: float) -> None:
        if told.reason and not batch.was_trained:
            if told.stale:
                self._staleness.note_dropped(batch, now)
            why = None if told.stale else EndReason.GIVEN_UP
            self._book.finish(batch, MicroBatchEvent.DROP, now, printable(told.reason), why)
            return
        if batch.state is MicroBatchState.READY:
            self._book.move(batch, MicroBatchEvent.PROMOTE, now)
        self._book.finish(batch, MicroBatchEvent.CONSUME, now)

    def _lent(self, attachment: Attachment, slot: int, generation: int) -> MicroBatch | None:
        batch = attachment.lent.get(slot)
        if batch is None or batch.generation != generation:
            # A repeat of a release that was carried out, or one that outlived its generation.
            self._book.out.counters["late_releases"] += 1
            return None
        return batch

    def _release(self, attachment: Attachment, batch: MicroBatch, now: float) -> None:
        del attachment.lent[batch.slot]
        self._book.release(batch, now)


def _is_lent(attachment: Attachment, request: Finished) -> bool:
    """Tells whether what is reported finished was not released by its trainer, as far as is known here."""
    told = (request.key, request.attempt, request.generation)
    return any((batch.key, batch.attempt, batch.generation) == told for batch in attachment.lent.values())
