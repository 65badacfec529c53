"""Decisions about trainers: attaching, lending in order, releases, and what happens when one dies."""

from __future__ import annotations

from forebay.shm import SlotEvent, SlotState
from forebay.wire import (
    GONE,
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Detach,
    Done,
    Finished,
    KeyGone,
    Lend,
    MicroBatchEvent,
    MicroBatchState,
    Peer,
    Promoted,
    RefusalCode,
    Staged,
    Want,
    printable,
)

from .actions import Address, ForgetHolder, Level, Reply, WatchHolder
from .book import Book, shortened
from .micro_batch import FoundSlot, MicroBatch, on_device_batch
from .staleness import Staleness
from .train_queue import Attachment, TrainQueue


class Lending:
    """The trainers' side of the ledger.

    Args:
        book: The shared books.
        staleness: Tells what may not be lent.
    """

    def __init__(self, book: Book, staleness: Staleness) -> None:
        self._book = book
        self._staleness = staleness
        self._by_holder: dict[str, tuple[TrainQueue, Attachment]] = {}

    def attach(self, address: Address, request: Attach, now: float) -> bool:
        """Attaches a trainer, or the same one again after a lost connection or a daemon restart.

        Returns:
            Whether a slot became FREE.
        """
        book = self._book
        if request.version != PROTOCOL_VERSION:
            words = f"trainer speaks protocol {request.version}, daemon {PROTOCOL_VERSION}"
            book.refuse(address, request.id, RefusalCode.VERSION, words)
            return False
        if not _is_holder_name(request.holder) or not book.is_name(request.queue):
            words = "the queue's or holder's name is too long, empty, or has odd characters"
            book.refuse(address, request.id, RefusalCode.BAD_REQUEST, words)
            return False
        if not all(self._are_names(*entry) for entry in request.on_device):
            words = f"a key or attempt on the device is longer than {book.settings.limits.max_key_bytes} bytes"
            book.refuse(address, request.id, RefusalCode.BAD_REQUEST, words)
            return False
        elsewhere = self._by_holder.get(request.holder)
        if elsewhere is not None and elsewhere[0].name != request.queue:
            words = f"this holder is attached to queue {elsewhere[0].name!r}; a lock stands for one attachment"
            book.refuse(address, request.id, RefusalCode.BAD_REQUEST, words)
            return False
        if words := book.make_room_for_queue(request.queue):
            book.refuse(address, request.id, RefusalCode.BAD_REQUEST, words)
            return False
        queue = book.queue(request.queue)
        present = queue.attachment
        if present is not None and present.holder != request.holder:
            who = present.peer
            words = (
                f"queue {queue.name!r} has a live trainer: {who.name} pid {who.pid} on {who.host},"
                f" for {now - present.since:.1f} s"
            )
            book.refuse(address, request.id, RefusalCode.QUEUE_TAKEN, words)
            return False
        if present is None:
            present = self._attachment(queue, request.holder, shortened(request.peer), now)
        present.address, present.peer = address, shortened(request.peer)
        present.credit_total = present.lent_total = 0
        book.log(Level.INFO, "attach", queue=queue.name, peer=request.peer.name, pid=request.peer.pid)
        book.do(Reply(address, Attached(id=request.id, epoch=book.epoch, limits=book.settings.limits)))
        self._lend_again(present, set(request.held), now)
        self._staleness.tell_again(queue, now)
        freed = [self._learn_on_device(queue, present, *entry, now) for entry in request.on_device]
        return any(freed)

    def _attachment(self, queue: TrainQueue, holder: str, peer: Peer, now: float) -> Attachment:
        attachment = Attachment(holder, None, peer, now)
        queue.attachment = attachment
        self._by_holder[holder] = (queue, attachment)
        self._book.do(WatchHolder(holder))
        return attachment

    def _lend_again(self, attachment: Attachment, held: set[tuple[int, int]], now: float) -> None:
        """Repeats lends that the trainer does not know of: their message was lost."""
        for batch in attachment.lent.values():
            if (batch.slot, batch.generation) not in held:
                self._send_lend(attachment, batch, now, on_credit=False)

    def _learn_on_device(
        self,
        queue: TrainQueue,
        attachment: Attachment,
        key: str,
        attempt: str,
        now: float,
        *,
        is_trained: bool = False,
    ) -> bool:
        """Learns what only the trainer knows: after a restart, or of a key that went inline.

        So that no repeat is trained twice. The orchestrator may have been faster: its offer then waits, fills, or
        is READY again by now. And it may have been dropped before: trained is trained.

        Returns:
            Whether that freed a slot.
        """
        book = self._book
        known = book.find(queue.name, key)
        is_over = known is not None and known.state in GONE
        if known is not None and known.was_published and not is_over and known not in queue.ready:
            if is_trained and known.slot >= 0:
                # It is lent, and the trainer may not know that yet. Whatever becomes of the slot, it is trained.
                known.was_trained = True
                book.record(known, state=MicroBatchState.CONSUMED, attempt="")
            return False
        batch = on_device_batch(queue.name, key, attempt, now)
        book.batches[queue.name, key] = attachment.on_device[key] = batch
        book.record(batch, holder=attachment.holder)
        book.answer_waits(batch)
        if known in queue.ready:
            queue.remove(known)
            book.give_back_slot(known, SlotEvent.DROP)
            book.log(Level.WARNING, "already_on_device", queue=queue.name, key=key)
            return True
        if known is None or known.sender is None:
            return False
        book.give_back_slot(known, SlotEvent.ABANDON)
        if known.attempt == attempt:
            book.do(Reply(known.sender, Staged(id=known.offer_id, state=batch.state)))
        elif is_trained:
            words = f"the trainer of queue {queue.name!r} trained {printable(key)!r} meanwhile, by another way"
            book.refuse(known.sender, known.offer_id, RefusalCode.CONSUMED, words)
        else:
            words = f"the trainer of queue {queue.name!r} came back with {printable(key)!r} on its device"
            book.refuse(known.sender, known.offer_id, RefusalCode.IN_USE, words)
        return True

    def want(self, address: Address, request: Want, now: float) -> None:
        """Notes what a trainer waits for and lends what there is."""
        found = self._attached(address, request.holder, request.id)
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
                self._book.do(Reply(address, gone))
        self.lend(queue, now)

    def lend(self, queue: TrainQueue, now: float) -> None:
        """Lends READY slots for as long as the trainer waits for some; what is stale is left to the next tick."""
        attachment = queue.attachment
        while (batch := queue.next_to_lend(lambda batch: self._staleness.is_fresh(batch, now))) is not None:
            assert attachment is not None
            on_credit = batch.key not in attachment.wanted_keys
            attachment.wanted_keys = tuple(key for key in attachment.wanted_keys if key != batch.key)
            attachment.lent_total += on_credit
            self._book.lend(batch, attachment.holder)
            attachment.lent[batch.slot] = batch
            self._send_lend(attachment, batch, now, on_credit=on_credit)

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
        self._book.do(Reply(attachment.address, lend))

    def promoted(self, address: Address, request: Promoted, now: float) -> bool:
        """Hears that a slot's bytes are on the device; returns whether a slot became FREE."""
        found = self._attached(address, request.holder, request.id)
        if found is None:
            return False
        _, attachment = found
        batch = self._release(attachment, request.slot, request.generation)
        if batch is not None:
            attachment.on_device[batch.key] = batch
            self._book.move(batch, MicroBatchEvent.PROMOTE, now)
            self._book.record(batch, holder=attachment.holder)
        self._book.do(Reply(address, Done(id=request.id)))
        return batch is not None

    def finished(self, address: Address, request: Finished, now: float) -> bool:
        """Hears that a micro-batch is consumed or given up; returns whether a slot became FREE."""
        found = self._attached(address, request.holder, request.id)
        if found is None:
            return False
        if not self._are_names(request.key, request.attempt):
            words = f"key and attempt need at most {self._book.settings.limits.max_key_bytes} bytes"
            self._book.refuse(address, request.id, RefusalCode.BAD_REQUEST, words)
            return False
        queue, attachment = found
        if request.slot < 0 and _is_lent(attachment, request):
            # Its release was lost. Both are said again, in order, until they are confirmed; to confirm this one
            # now would leave the key on the device for ever.
            return False
        batch = self._release(attachment, request.slot, request.generation) if request.slot >= 0 else None
        freed = batch is not None
        if batch is None and not request.reason and request.key not in attachment.on_device:
            freed = self._learn_on_device(queue, attachment, request.key, request.attempt, now, is_trained=True)
        batch = batch or attachment.on_device.pop(request.key, None)
        if batch is not None:
            self._end(batch, request, now)
        self._book.do(Reply(address, Done(id=request.id)))
        return freed

    def _end(self, batch: MicroBatch, told: Finished, now: float) -> None:
        if told.reason and not batch.was_trained:
            if told.stale:
                self._staleness.note_dropped(batch, now)
            self._book.finish(batch, MicroBatchEvent.DROP, now, printable(told.reason))
            return
        if batch.state is MicroBatchState.READY:
            self._book.move(batch, MicroBatchEvent.PROMOTE, now)
        self._book.finish(batch, MicroBatchEvent.CONSUME, now)

    def _release(self, attachment: Attachment, slot: int, generation: int) -> MicroBatch | None:
        batch = attachment.lent.get(slot)
        if batch is None or batch.generation != generation:
            # A repeat of a release that was carried out, or one that outlived its generation.
            self._book.counters["late_releases"] += 1
            return None
        del attachment.lent[slot]
        self._book.give_back_slot(batch, SlotEvent.RELEASE)
        return batch

    def detach(self, address: Address, request: Detach, now: float) -> None:
        """Ends an attachment; its slots are quarantined until its lock is free."""
        found = self._attached(address, request.holder, request.id)
        if found is None:
            return
        _, attachment = found
        attachment.address = None
        for batch in attachment.lent.values():
            if self._book.slots[batch.slot].state is SlotState.LENT:
                self._book.quarantine(batch, request.holder)
        self._lose_on_device(attachment, now, "its trainer detached before it was finished")
        self._book.do(Reply(address, Done(id=request.id)))

    def holder_free(self, holder: str, now: float) -> None:
        """Hears from the kernel that a trainer is gone: its slots are READY again, in their old places."""
        found = self._by_holder.pop(holder, None)
        if found is None:
            return
        queue, attachment = found
        who = attachment.peer
        for batch in attachment.lent.values():
            if self._book.slots[batch.slot].state is SlotState.LENT:
                self._book.quarantine(batch, holder)
            self._book.ready_again(batch)
            if batch.was_trained:
                self._book.consume_ready(batch, now)
            elif batch.was_reset:
                self._book.drop(batch, now, "the queue was reset")
        reason = f"its trainer, {who.name} pid {who.pid} on {who.host}, died before it was finished"
        self._lose_on_device(attachment, now, reason)
        self._book.log(Level.INFO, "detach", queue=queue.name, peer=who.name, pid=who.pid)
        self._book.do(ForgetHolder(holder))
        if queue.attachment is attachment:
            queue.attachment = None
            self._book.forget_if_unused(queue.name)

    def _lose_on_device(self, attachment: Attachment, now: float, reason: str) -> None:
        for batch in attachment.on_device.values():
            self._book.finish(batch, MicroBatchEvent.LOSE, now, reason)
        attachment.on_device.clear()

    def adopt(self, found: FoundSlot, batch: MicroBatch, now: float) -> None:
        """Takes over a slot that a dead daemon had lent; its trainer attaches again, or is found dead."""
        self._known_holder(batch.queue, found.holder, now).lent[found.index] = batch

    def adopt_on_device(self, holder: str, batch: MicroBatch, now: float) -> None:
        """Takes over what a dead daemon knew to be on a trainer's device."""
        self._book.batches[batch.queue, batch.key] = batch
        self._known_holder(batch.queue, holder, now).on_device[batch.key] = batch

    def _known_holder(self, queue_name: str, holder: str, now: float) -> Attachment:
        if holder not in self._by_holder:
            unknown = Peer(name="a trainer from before the restart", pid=0, host="")
            self._attachment(self._book.queue(queue_name), holder, unknown, now)
        return self._by_holder[holder][1]

    def _are_names(self, key: str, attempt: str) -> bool:
        # A key that was trained by another way has no attempt.
        return self._book.is_name(key) and (not attempt or self._book.is_name(attempt))

    def _attached(self, address: Address, holder: str, request_id: int) -> tuple[TrainQueue, Attachment] | None:
        found = self._by_holder.get(holder)
        if found is None or found[1].address != address:
            words = "attach first; the daemon may have restarted"
            self._book.refuse(address, request_id, RefusalCode.NOT_ATTACHED, words)
            return None
        return found


def _is_lent(attachment: Attachment, request: Finished) -> bool:
    """Tells whether what is reported finished was not released by its trainer, as far as is known here."""
    told = (request.key, request.attempt, request.generation)
    return any((batch.key, batch.attempt, batch.generation) == told for batch in attachment.lent.values())


def _is_holder_name(name: str) -> bool:
    # It becomes a file's name in the pool.
    return 0 < len(name) <= 64 and name.isascii() and name.isalnum()
