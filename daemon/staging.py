"""Decisions about offers: who gets which slot, what a repeat gets, and when a slot is taken back."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

import msgspec

from forebay.shm import Envelope, SlotEvent, SlotState
from forebay.wire import (
    MAX_EXPIRES_S,
    MAX_POLICY_VERSION,
    TRUSTED,
    Abandon,
    Arrivals,
    Client,
    MicroBatchEvent,
    MicroBatchState,
    Offer,
    Reached,
    RefusalCode,
    Reset,
    Staged,
    TreeError,
    WasReset,
    chunk_checksum,
    cut_spans,
    decode_manifest,
    place_leaves,
    printable,
)

from .actions import Address, Reply, WriteBody, WriteLoan
from .book import Book
from .micro_batch import MicroBatch
from .slot_supply import SlotSupply
from .staleness import Staleness

_MAX_WAIT_S = 86_400
_SHOWN_SLOTS = 8
_ANY_SIZE = 1 << 128


class Staging:
    """The orchestrators' side of the ledger.

    Args:
        book: The shared books.
        staleness: Tells what is taken in no more.
        when_published: Called after a publication, to lend what a trainer waits for.
    """

    def __init__(
        self, book: Book, staleness: Staleness, when_published: Callable[[MicroBatch, float], None]
    ) -> None:
        self._book = book
        self._staleness = staleness
        self._when_published = when_published
        self._supply = SlotSupply(book)

    # Offers.

    def offer(self, sender: Address, offer: Offer, now: float, client: Client = TRUSTED) -> None:
        """Grants a slot, waits for one, answers a repeat, or refuses in words that its client may hear."""
        refusal = self._book.refusal_of(offer.queue, offer.key, offer.attempt, client)
        if refusal is not None:
            self._book.reply(sender, msgspec.structs.replace(refusal, id=offer.id))
            return
        known = self._book.find(offer.queue, offer.key)
        if known is None:
            self._admit(sender, offer, now, client)
        elif known.attempt == offer.attempt:
            self._repeat(known, sender, offer, now, client)
        else:
            self._replace(known, sender, offer, now, client)

    def _repeat(self, batch: MicroBatch, sender: Address, offer: Offer, now: float, client: Client) -> None:
        batch.sender, batch.offer_id, batch.client = sender, offer.id, client
        if batch.was_published:
            self._book.do(Reply(sender, Staged(id=offer.id, state=batch.state)))
        elif batch.state is MicroBatchState.FILLING:
            batch.deadline = now + self._book.settings.fill_lease_s
            self._send_grant(batch)
        elif batch.state is MicroBatchState.OFFERED:
            # It waits for a slot; its sender hears that somebody is there.
            self._book.do(Reply(sender, Reached(id=offer.id, state=batch.state)))
        elif batch.fell_silent:
            self._admit(sender, offer, now, client, sequence=batch.sequence)
        elif batch.state is MicroBatchState.DROPPED:
            words = f"this attempt for {printable(offer.key)!r} was dropped: {batch.reason}"
            self._book.refuse(sender, offer.id, RefusalCode.DROPPED, words)

    def _replace(self, batch: MicroBatch, sender: Address, offer: Offer, now: float, client: Client) -> None:
        if batch.state is MicroBatchState.CONSUMED:
            words = f"{printable(offer.key)!r} was trained already; use a new key for a new micro-batch"
            self._book.refuse(sender, offer.id, RefusalCode.CONSUMED, words)
        elif self._is_with_trainer(batch):
            words = f"the trainer of queue {offer.queue!r} holds {offer.key!r}; wait until it is consumed"
            self._book.refuse(sender, offer.id, RefusalCode.IN_USE, words)
        elif (offer.queue, offer.key) in self._book.batches:
            self._admit(sender, offer, now, client, replaced=batch)
        else:
            if batch.fell_silent:
                # Its sender may wake up; it must not take the key back.
                words = f"a newer attempt for {printable(batch.key)!r} came"
                self._book.refuse_attempt(batch, RefusalCode.REPLACED, words)
                self._book.record_end(batch)
            self._admit(sender, offer, now, client)

    def _is_with_trainer(self, batch: MicroBatch) -> bool:
        if batch.state is MicroBatchState.ON_DEVICE:
            return True
        return batch.slot >= 0 and self._book.slots[batch.slot].state in (
            SlotState.LENT,
            SlotState.QUARANTINED,
        )

    def _admit(
        self,
        sender: Address,
        offer: Offer,
        now: float,
        client: Client,
        *,
        replaced: MicroBatch | None = None,
        sequence: int = 0,
    ) -> None:
        """Takes an offer in, at the place of the entry that it replaces, or at one that it had before.

        An offer that is refused at once leaves that entry alone; one that is taken in ends it, also if no slot can
        be had for the new one later.
        """
        book = self._book
        if book.draining:
            book.refuse(sender, offer.id, RefusalCode.DRAINING, "the daemon is shutting down")
            return
        words = self._fault_of(offer)
        if words:
            book.refuse(sender, offer.id, RefusalCode.BAD_REQUEST, words)
            return
        try:
            batch = self._new_batch(sender, offer, now, client)
        except TreeError as error:
            book.refuse(sender, offer.id, self._manifest_fault(offer.manifest), str(error))
            return
        if not self._has_a_place(batch, replaced, now):
            return
        if batch.policy_version is not None:
            # What it takes the place of keeps that place until then.
            self._staleness.learn(book.queue(batch.queue), batch.policy_version, now, spare=replaced)
        # A key that is there already keeps its place among the batches, and so in the line for a slot.
        book.batches[batch.queue, batch.key] = batch
        batch.sequence = sequence
        if replaced is not None:
            batch.sequence = replaced.sequence
            book.supersede(replaced, now)
        self.serve_waiting(now)
        if batch.slot < 0 and offer.wait_s <= 0:
            self._refuse_for_want_of_a_slot(batch, now)

    def _is_crowded(self, batch: MicroBatch, replaced: MicroBatch | None) -> str:
        """Says why there is no room for one more offer; empty if there is."""
        settings = self._book.settings
        waiting = [other for other in self._book.waiting() if other is not replaced]
        if sum(other.waiting_bytes for other in waiting) + batch.waiting_bytes > settings.max_waiting_bytes:
            return f"the offers that wait take {settings.max_waiting_bytes} bytes already, max_waiting_bytes"
        if replaced is not None:
            return ""
        if len(waiting) >= settings.max_waiting_offers:
            return f"{len(waiting)} offers wait for a slot already, max_waiting_offers"
        return self._book.make_room_for_queue(batch.queue)

    def _has_a_place(self, batch: MicroBatch, replaced: MicroBatch | None, now: float) -> bool:
        """Tells whether an offer may be taken in; else it is refused."""
        stale = self._staleness.offered(batch, now)
        if stale:
            self._book.refuse(batch.sender, batch.offer_id, RefusalCode.STALE, stale)
            return False
        crowded = self._is_crowded(batch, replaced)
        if crowded:
            words = f"{crowded}; offer again later"
            self._book.refuse(batch.sender, batch.offer_id, RefusalCode.TOO_MANY_OFFERS, words)
        return not crowded

    def _fault_of(self, offer: Offer) -> str:
        """Says what is wrong with an offer's fields, beside its manifest; empty for nothing."""
        names = (offer.queue, offer.key, offer.attempt)
        if not all(map(self._book.is_name, names)) or not 0 <= offer.wait_s <= _MAX_WAIT_S:
            words = f"queue, key and attempt need 1 to {self._book.settings.limits.max_key_bytes} bytes, "
            return words + f"wait_s 0 to {_MAX_WAIT_S}"
        if not 0 <= (offer.policy_version or 0) <= MAX_POLICY_VERSION:
            return f"policy_version needs 0 to {MAX_POLICY_VERSION}"
        if not (abs(offer.expires_s or 0.0) <= MAX_EXPIRES_S and 0 <= offer.age_s <= MAX_EXPIRES_S):
            return f"expires_s needs at most {MAX_EXPIRES_S:g} either way, age_s 0 to as much"
        return ""

    def _manifest_fault(self, encoded: bytes) -> RefusalCode:
        """Tells whether nothing but its size is wrong with a manifest that was not accepted."""
        any_size = msgspec.structs.replace(self._book.settings.limits, max_micro_batch_bytes=_ANY_SIZE)
        try:
            decode_manifest(encoded, any_size)
        except TreeError:
            return RefusalCode.BAD_MANIFEST
        return RefusalCode.TOO_LARGE

    def _new_batch(self, sender: Address, offer: Offer, now: float, client: Client) -> MicroBatch:
        limits = self._book.settings.limits
        manifest = decode_manifest(offer.manifest, limits)
        leaf_bytes = tuple(leaf.nbytes for leaf in manifest.leaves)
        body_bytes = place_leaves(leaf_bytes)[1]
        offered_at = now - offer.age_s
        expires_at = None if offer.expires_s is None else offered_at + offer.expires_s
        envelope = Envelope(
            *(offer.queue, offer.key, offer.attempt, offer.manifest),
            offered_at=offered_at,
            expires_at=expires_at,
            policy_version=offer.policy_version,
        )
        return MicroBatch(
            queue=offer.queue,
            key=offer.key,
            attempt=offer.attempt,
            envelope=msgspec.msgpack.encode(envelope),
            leaf_bytes=leaf_bytes,
            payload_bytes=manifest.payload_bytes,
            body_bytes=body_bytes,
            sender=sender,
            client=client,
            offer_id=offer.id,
            deadline=now + offer.wait_s,
            body=self._eager_body(offer, body_bytes),
            since=now,
            offered_at=offered_at,
            expires_at=math.inf if expires_at is None else expires_at,
            policy_version=offer.policy_version,
        )

    def _eager_body(self, offer: Offer, body_bytes: int) -> bytes:
        """Returns the body that came with an offer; none if it is wrong, so that its chunks are asked for."""
        body = offer.body
        if not body:
            return b""
        is_right = len(body) == body_bytes <= self._book.settings.limits.max_eager_bytes
        if is_right and chunk_checksum(body, 0) == offer.checksum:
            return body
        self._book.counters["eager_body_wrong"] += 1
        return b""

    # Slots.

    def serve_waiting(self, now: float) -> None:
        """Gives FREE slots to the offers that wait, oldest first."""
        for batch in self._book.waiting():
            slot = self._supply.choose(batch.file_bytes, may_grow=not batch.is_only_for_fitting)
            if slot is None and batch.is_only_for_fitting:
                continue  # what is too small for it may serve others
            if slot is None:
                return
            self._book.loan(batch, slot.index)
            if slot.slot_bytes >= batch.file_bytes:
                self._grant(batch, now)
            else:
                self._supply.grow(slot.index, batch.file_bytes)

    def reserved(self, slot_index: int, file_bytes: int, now: float) -> None:
        """Hears that a slot's file has grown; grants it to whoever it grew for."""
        self._supply.grown(slot_index, file_bytes)
        batch = self._grows_for(slot_index)
        if batch is not None and batch.file_bytes <= file_bytes:
            self._grant(batch, now)
        self.serve_waiting(now)
        self._supply.grow_ahead()

    def reserve_failed(self, slot_index: int, words: str, now: float) -> None:
        """Hears that a slot cannot grow; whoever needed it waits for one that fits, or is told why it got none."""
        self._supply.failed(slot_index, words)
        batch = self._grows_for(slot_index)
        if batch is not None and batch.deadline > now and self._supply.has_fitting(batch.file_bytes):
            batch.is_only_for_fitting = True
            self._book.give_back_slot(batch, SlotEvent.ABANDON)
        elif batch is not None:
            self._book.refuse_attempt(batch, RefusalCode.SHM_FULL, words)
            self._forget(batch, now, "shared memory is full")
        self.serve_waiting(now)

    def _grows_for(self, slot_index: int) -> MicroBatch | None:
        """Returns the micro-batch that has a slot but no grant yet."""
        batches = self._book.batches.values()
        offered = (batch for batch in batches if batch.state is MicroBatchState.OFFERED)
        return next((batch for batch in offered if batch.slot == slot_index), None)

    def _grant(self, batch: MicroBatch, now: float) -> None:
        book = self._book
        book.do(WriteLoan(batch.slot, batch.generation, batch.envelope, batch.body_bytes))
        if batch.body:
            book.do(WriteBody(batch.slot, batch.body))
            batch.body = b""
            book.move(batch, MicroBatchEvent.GRANT, now)
            self._publish(batch, now)
            return
        token = secrets.randbits(64)
        # Not before: an offer that only waits shall not cost memory by the bytes that it declares.
        offsets, _ = place_leaves(batch.leaf_bytes)
        spans = cut_spans(batch.leaf_bytes, offsets, book.settings.limits.chunk_bytes)
        arrivals = Arrivals(batch.slot, batch.generation, token, spans)
        batch.deadline = now + book.settings.fill_lease_s
        book.fill(batch, arrivals)
        book.move(batch, MicroBatchEvent.GRANT, now)
        self._send_grant(batch)
        if arrivals.is_complete:
            self._publish(batch, now)

    def _send_grant(self, batch: MicroBatch) -> None:
        if batch.arrivals is None or batch.sender is None:
            return
        chunk_bytes = self._book.settings.limits.chunk_bytes
        grant = batch.arrivals.granted(request_id=batch.offer_id, attempt=batch.attempt, chunk_bytes=chunk_bytes)
        self._book.do(Reply(batch.sender, grant))

    def filled(self, arrivals: Arrivals, now: float) -> None:
        """Hears that all of a micro-batch lies in its slot; it may be over by then."""
        batch = self._book.filling.get(arrivals.slot)
        if batch is not None and batch.arrivals is arrivals:
            self._publish(batch, now)

    def _publish(self, batch: MicroBatch, now: float) -> None:
        self._book.publish(batch, now)
        # The trainer first: it waits, and the sender has nothing to do with the answer but go on.
        sender, staged = batch.sender, Staged(id=batch.offer_id, state=batch.state)
        self._when_published(batch, now)
        if sender is not None:
            self._book.do(Reply(sender, staged))

    # Ends.

    def abandon(self, sender: Address, request: Abandon, now: float) -> None:
        """Gives up an attempt, unless the trainer holds it already."""
        batch = self._book.find(request.queue, request.key)
        if batch is None or batch.attempt != request.attempt:
            words = f"no such attempt for {printable(request.key)!r} in queue {printable(request.queue)!r}"
            self._book.refuse(sender, request.id, RefusalCode.UNKNOWN_KEY, words)
            return
        if (request.queue, request.key) in self._book.batches and not self._is_with_trainer(batch):
            self._book.drop(batch, now, "abandoned by its sender")
            self.serve_waiting(now)
        self._book.do(Reply(sender, Reached(id=request.id, state=batch.state)))

    def reset(self, sender: Address, request: Reset, now: float) -> None:
        """Drops all of a queue that the trainer does not hold, and what it holds once that comes back."""
        dropped = []
        for batch in self._book.batches.values():
            if batch.queue == request.queue and self._is_with_trainer(batch):
                if batch.slot >= 0 and not batch.was_reset:  # what is on the device never comes back
                    self._book.record(batch, was_reset=True)
                batch.was_reset = True
            elif batch.queue == request.queue:
                dropped.append(batch)
        for batch in dropped:
            if not batch.was_published:
                words = f"queue {printable(request.queue)!r} was reset"
                self._book.refuse_attempt(batch, RefusalCode.DROPPED, words)
            self._book.drop(batch, now, "the queue was reset")
        if request.queue in self._book.queues:
            # What comes next may be of an older policy: whoever goes back to a checkpoint resets.
            self._book.queues[request.queue].policy_version = None
            self._book.forget_if_unused(request.queue)
        self._book.do(Reply(sender, WasReset(id=request.id, dropped=len(dropped))))
        self.serve_waiting(now)

    def expire(self, now: float) -> None:
        """Takes back slots whose sender fell silent and refuses offers that waited long enough."""
        for batch in list(self._book.filling.values()):
            if batch.silent_at(self._book.settings.fill_lease_s) <= now:
                batch.fell_silent = True
                self._book.drop(batch, now, "the sender fell silent while filling")
        for batch in self._book.waiting():
            if batch.deadline <= now:
                self._refuse_for_want_of_a_slot(batch, now)
        self.serve_waiting(now)

    def refuse_waiting(self, now: float) -> None:
        """Refuses every offer that has no slot yet, because the daemon drains."""
        for batch in self._book.waiting():
            words = "the daemon is shutting down"
            self._book.refuse_attempt(batch, RefusalCode.DRAINING, words)
            self._forget(batch, now, words)

    def _refuse_for_want_of_a_slot(self, batch: MicroBatch, now: float) -> None:
        slots = list(self._book.slots)
        held = ", ".join(self._describe_slot(slot.index, batch.client, now) for slot in slots[:_SHOWN_SLOTS])
        if len(slots) > _SHOWN_SLOTS:
            # The words are remembered with the attempt, thousands of times.
            held += f" and {len(slots) - _SHOWN_SLOTS} more"
        words = f"no slot became free for {printable(batch.key)!r}"
        self._book.refuse_attempt(batch, RefusalCode.NO_SLOT, words, details=f": {held}")
        self._forget(batch, now, "no slot became free")

    def _describe_slot(self, index: int, client: Client, now: float) -> str:
        """Says what a slot is doing; of what it holds, only what a client may see."""
        state = "growing" if self._supply.is_growing(index) else self._book.slots[index].state.name
        words = f"slot {index} {state}"
        batch = next((batch for batch in self._book.batches.values() if batch.slot == index), None)
        if batch is None or not client.may_see(batch.queue):
            return words
        words += f" {printable(batch.key)!r} for {now - batch.since:.1f} s"
        queue = self._book.queues.get(batch.queue)
        trainer = queue.attachment if queue is not None else None
        if trainer is None or index not in trainer.lent:
            return words
        return f"{words} with {trainer.peer.name} pid {trainer.peer.pid} on {trainer.peer.host}"

    def _forget(self, batch: MicroBatch, now: float, reason: str) -> None:
        """Ends an offer that was refused; another stage call may use its key."""
        self._book.give_back_slot(batch, SlotEvent.ABANDON)
        self._book.move(batch, MicroBatchEvent.DROP, now, reason)
        del self._book.batches[batch.queue, batch.key]
        self._book.forget_if_unused(batch.queue)
