"""Decisions about offers: which are taken in, at whose place, and what a repeat or another attempt gets."""

from __future__ import annotations

import msgspec

from forebay.wire import (
    TRUSTED,
    Client,
    MicroBatchState,
    Offer,
    Reached,
    RefusalCode,
    Staged,
    TooLargeError,
    TreeError,
    printable,
)

from .actions import Address, Level, Reply
from .book import EVENT_OF_STATE, Book, who
from .filling import Filling
from .micro_batch import MicroBatch
from .offers import fault_of, offered_batch
from .staleness import Staleness
from .waiting_line import WaitingLine


class Staging:
    """The orchestrators' side of the ledger.

    Args:
        book: The shared books.
        staleness: Tells what is taken in no more.
        line: Where offers wait for a slot.
        filling: Tells senders what is missing.
    """

    def __init__(self, book: Book, staleness: Staleness, line: WaitingLine, filling: Filling) -> None:
        self._book = book
        self._staleness = staleness
        self._line = line
        self._filling = filling

    def offer(self, sender: Address, offer: Offer, now: float, client: Client = TRUSTED) -> None:
        """Grants a slot, waits for one, answers a repeat, or refuses in words that its client may hear."""
        refusal = self._book.outcomes.refusal_of(offer.queue, offer.key, offer.attempt, client)
        if refusal is not None:
            self._book.out.reply(sender, msgspec.structs.replace(refusal, id=offer.id))
            return
        known = self._book.find(offer.queue, offer.key)
        if known is None:
            self._admit(sender, offer, now, client)
        elif known.attempt == offer.attempt:
            self._repeat(known, sender, offer, now, client)
        else:
            self._replace(known, sender, offer, now, client)

    # What is known already.

    def _repeat(self, batch: MicroBatch, sender: Address, offer: Offer, now: float, client: Client) -> None:
        if self._book.batches.get((batch.queue, batch.key)) is batch:  # one that is over needs to be told no more
            batch.sender, batch.offer_id, batch.client = sender, offer.id, client
        if batch.was_published:
            self._book.out.do(Reply(sender, Staged(id=offer.id, state=batch.state)))
        elif batch.state is MicroBatchState.FILLING:
            self._filling.go_on(batch, now)
        elif batch.state is MicroBatchState.OFFERED:
            # It waits for a slot; its sender hears that somebody is there.
            self._book.out.do(Reply(sender, Reached(id=offer.id, state=batch.state)))
        elif batch.fell_silent:
            self._admit(sender, offer, now, client, sequence=batch.sequence)
        elif batch.state is MicroBatchState.DROPPED:
            words = f"this attempt for {printable(offer.key)!r} was dropped: {batch.reason}"
            self._refuse(sender, offer, RefusalCode.DROPPED, words)

    def _replace(self, batch: MicroBatch, sender: Address, offer: Offer, now: float, client: Client) -> None:
        if batch.state is MicroBatchState.CONSUMED:
            words = f"{printable(offer.key)!r} was trained already; use a new key for a new micro-batch"
            self._refuse(sender, offer, RefusalCode.CONSUMED, words)
        elif self._book.is_with_trainer(batch):
            words = f"the trainer of queue {offer.queue!r} holds {offer.key!r}; wait until it is consumed"
            self._refuse(sender, offer, RefusalCode.IN_USE, words)
        elif (offer.queue, offer.key) in self._book.batches:
            self._admit(sender, offer, now, client, replaced=batch)
        else:
            if batch.fell_silent:
                # Its sender may wake up; it must not take the key back.
                words = f"a newer attempt for {printable(batch.key)!r} came"
                self._book.outcomes.refuse_attempt(batch, RefusalCode.REPLACED, words)
                self._book.outcomes.record_end(batch)
            self._admit(sender, offer, now, client)

    # What is new.

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
        batch = self._batch_of(sender, offer, now, client)
        if batch is None or not self._has_a_place(batch, replaced, now):
            return
        batch.sequence = sequence if replaced is None else replaced.sequence
        self._take_in(batch, replaced, now)
        self._line.serve(now)
        if batch.slot < 0 and offer.wait_s <= 0:
            self._line.refuse(batch, now)

    def _batch_of(self, sender: Address, offer: Offer, now: float, client: Client) -> MicroBatch | None:
        """Makes the micro-batch of an offer that is in order; else that is refused."""
        limits = self._book.settings.limits
        if self._book.draining:
            self._refuse(sender, offer, RefusalCode.DRAINING, self._book.why_draining)
            return None
        if words := fault_of(offer, limits):
            self._refuse(sender, offer, RefusalCode.BAD_REQUEST, words)
            return None
        try:
            batch = offered_batch(offer, sender, client, limits, now)
        except TreeError as error:
            is_too_large = isinstance(error, TooLargeError)
            code = RefusalCode.TOO_LARGE if is_too_large else RefusalCode.BAD_MANIFEST
            self._refuse(sender, offer, code, str(error))
            return None
        if offer.body and not batch.body:
            self._book.out.counters["eager_body_wrong"] += 1
        return batch

    def _refuse(self, sender: Address, offer: Offer, code: RefusalCode, words: str) -> None:
        self._book.out.refuse(sender, offer.id, code, words, **self._book.named(offer.queue, offer.key))

    def _has_a_place(self, batch: MicroBatch, replaced: MicroBatch | None, now: float) -> bool:
        """Tells whether an offer may be taken in; else it is refused."""
        refusal = self._reason_against(batch, replaced, now)
        if refusal is not None:
            self._book.out.refuse(batch.sender, batch.offer_id, *refusal, queue=batch.queue, key=batch.key)
        return refusal is None

    def _reason_against(
        self, batch: MicroBatch, replaced: MicroBatch | None, now: float
    ) -> tuple[RefusalCode, str] | None:
        if stale := self._staleness.offered(batch, now):
            return RefusalCode.STALE, stale
        if crowded := self._line.is_crowded(batch, replaced):
            return RefusalCode.TOO_MANY_OFFERS, f"{crowded}; offer again later"
        no_room = "" if replaced is not None else self._book.queues.make_room_for(batch.queue)
        return (RefusalCode.TOO_MANY, f"{no_room}; offer again later") if no_room else None

    def _take_in(self, batch: MicroBatch, replaced: MicroBatch | None, now: float) -> None:
        if batch.policy_version is not None:
            # What it takes the place of keeps that place until then.
            self._staleness.learn(self._book.queues.of(batch.queue), batch.policy_version, now, spare=replaced)
        self._book.log(
            Level.DEBUG,
            EVENT_OF_STATE[batch.state],
            batch,
            payload_bytes=batch.payload_bytes,
            policy_version=batch.policy_version,
            **who(self._book.peers.find(batch.sender)),
        )
        # A key that is there already keeps its place among the batches, and so in the line for a slot.
        self._book.batches[batch.queue, batch.key] = batch
        if replaced is not None:
            self._book.supersede(replaced, now)
