"""Decisions about offers that wait for a slot: who gets the next one, and what who gets none is told."""

from __future__ import annotations

from forebay.shm import SlotEvent
from forebay.wire import Client, MicroBatchState, RefusalCode, printable

from .book import Book
from .filling import Filling
from .micro_batch import MicroBatch
from .slot_supply import SlotSupply

_SHOWN_SLOTS = 8


class WaitingLine:
    """The offers without a slot, oldest first, and those whose slot still grows.

    Args:
        book: The shared books.
        filling: Grants slots.
    """

    def __init__(self, book: Book, filling: Filling) -> None:
        self._book = book
        self._filling = filling
        self._supply = SlotSupply(book)

    def serve(self, now: float) -> None:
        """Gives FREE slots to the offers that wait, oldest first."""
        for batch in self._book.waiting():
            slot = self._supply.choose(batch.file_bytes, may_grow=not batch.is_only_for_fitting)
            if slot is None and batch.is_only_for_fitting:
                continue  # what is too small for it may serve others
            if slot is None:
                return
            self._book.slot_moves.loan(batch, slot.index)
            if slot.slot_bytes >= batch.file_bytes:
                self._filling.grant(batch, now)
            else:
                self._supply.grow(slot.index, batch.file_bytes)

    def reserved(self, slot_index: int, file_bytes: int, now: float) -> None:
        """Hears that a slot's file has grown; grants it to whoever it grew for."""
        self._supply.grown(slot_index, file_bytes)
        batch = self._grows_for(slot_index)
        if batch is not None and batch.file_bytes <= file_bytes:
            self._filling.grant(batch, now)
        self.serve(now)
        self._supply.grow_ahead()

    def reserve_failed(self, slot_index: int, words: str, now: float) -> None:
        """Hears that a slot cannot grow; whoever needed it waits for one that fits, or is told why it got none."""
        self._supply.failed(slot_index, words)
        batch = self._grows_for(slot_index)
        if batch is not None and batch.deadline > now and self._supply.has_fitting(batch.file_bytes):
            batch.is_only_for_fitting = True
            self._book.slot_moves.give_back(batch, SlotEvent.ABANDON)
        elif batch is not None:
            self._book.outcomes.refuse_attempt(batch, RefusalCode.SHM_FULL, words)
            self._book.forget_offer(batch, now, "shared memory is full")

    def _grows_for(self, slot_index: int) -> MicroBatch | None:
        """Returns the micro-batch that has a slot but no grant yet."""
        batches = self._book.batches.values()
        offered = (batch for batch in batches if batch.state is MicroBatchState.OFFERED)
        return next((batch for batch in offered if batch.slot == slot_index), None)

    # Those who get none.

    def is_crowded(self, batch: MicroBatch, replaced: MicroBatch | None) -> str:
        """Says why there is no room for one more offer; empty if there is."""
        settings = self._book.settings
        waiting = [other for other in self._book.waiting() if other is not replaced]
        if sum(other.waiting_bytes for other in waiting) + batch.waiting_bytes > settings.max_waiting_bytes:
            return f"the offers that wait take {settings.max_waiting_bytes} bytes already, max_waiting_bytes"
        if replaced is None and len(waiting) >= settings.max_waiting_offers:
            return f"{len(waiting)} offers wait for a slot already, max_waiting_offers"
        return ""

    def refuse(self, batch: MicroBatch, now: float) -> None:
        """Refuses an offer that got no slot in its time, and says who has them."""
        slots = list(self._book.slots)
        held = ", ".join(self._describe_slot(slot.index, batch.client, now) for slot in slots[:_SHOWN_SLOTS])
        if len(slots) > _SHOWN_SLOTS:
            # The words are remembered with the attempt, thousands of times.
            held += f" and {len(slots) - _SHOWN_SLOTS} more"
        words = f"no slot became free for {printable(batch.key)!r} within {now - batch.since:.1f} s"
        details = f": {held}; wait longer (wait_s), or give the pool more slots (slots)"
        self._book.outcomes.refuse_attempt(batch, RefusalCode.NO_SLOT, words, details=details)
        self._book.forget_offer(batch, now, "no slot became free")

    def _describe_slot(self, index: int, client: Client, now: float) -> str:
        """Says what a slot is doing; of what it holds, only what a client may see."""
        state = "growing" if self._supply.is_growing(index) else self._book.slots[index].state.name
        words = f"slot {index} {state}"
        batch = next((batch for batch in self._book.batches.values() if batch.slot == index), None)
        if batch is None or not client.may_see(batch.queue):
            return words
        words += f" {printable(batch.key)!r} for {now - batch.since:.1f} s"
        who = next((attachment.peer for attachment in self._book.attachments if index in attachment.lent), None)
        return words if who is None else f"{words} with {who}"

    def expire(self, now: float) -> None:
        """Refuses offers that waited long enough."""
        for batch in self._book.waiting():
            if batch.deadline <= now:
                self.refuse(batch, now)

    def drain(self, now: float) -> None:
        """Refuses every offer that has no slot yet, because the daemon drains."""
        for batch in self._book.waiting():
            words = self._book.why_draining
            self._book.outcomes.refuse_attempt(batch, RefusalCode.DRAINING, words)
            self._book.forget_offer(batch, now, words)
