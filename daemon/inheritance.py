"""What a daemon makes of what the one before it left in the pool: slots, and the journal of outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from forebay.shm import Outcome, SlotEvent, SlotState
from forebay.wire import Event, MicroBatchState, Peer

from .actions import Level
from .attaching import Attaching
from .book import Book, who
from .micro_batch import FoundSlot, MicroBatch, found_batch, recalled_batch

Key = tuple[str, str]
_UNKNOWN = Peer(name="a trainer from before the restart", pid=0, host="")
"""One of whom nothing is known but its lock's name: nothing can be read in the lock, or it is removed."""

_LEAVE = {
    SlotState.READY: SlotEvent.DROP,
    SlotState.LENT: SlotEvent.RELEASE,
    SlotState.QUARANTINED: SlotEvent.RELEASE,
}


class Inheritance:
    """What a journal says, sorted; and what the slots say beside it.

    Args:
        outcomes: The journal, oldest first.
        holders: Who the holders are, by the names of their locks, as far as that is known.
    """

    def __init__(self, outcomes: Iterable[Outcome], holders: Mapping[str, Peer]) -> None:
        self._holders = holders
        self._on_device: dict[Key, Outcome] = {}
        self._over: dict[Key, Outcome] = {}
        self._superseded: list[Outcome] = []
        self._was_reset: set[tuple[str, str, str]] = set()
        for outcome in outcomes:
            self._sort(outcome)

    def _sort(self, outcome: Outcome) -> None:
        key = (outcome.queue, outcome.key)
        if outcome.was_reset:
            self._was_reset.add((*key, outcome.attempt))
        elif outcome.is_forgotten:
            self._on_device.pop(key, None)
            self._supersede(key)
        elif outcome.state is MicroBatchState.ON_DEVICE:
            self._on_device[key] = outcome
        else:
            self._on_device.pop(key, None)
            self._supersede(key)  # so that the last to end comes last
            self._over[key] = outcome

    def _supersede(self, key: Key) -> None:
        before = self._over.pop(key, None)
        if before is not None and before.code is not None:
            self._superseded.append(before)

    def enter(self, book: Book, attaching: Attaching, found_slots: Sequence[FoundSlot], now: float) -> None:
        """Enters all of it into a new daemon's books."""
        for outcome in (*self._superseded, *self._over.values()):
            book.outcomes.recall(outcome, now)
        for found in sorted(found_slots, key=lambda found: found.sequence):
            book.next_sequence(at_least=found.sequence)
            batch = found_batch(found)
            if self._is_over(batch, book):
                book.slot_moves.give_back(batch, _LEAVE[book.slots[found.index].state])
            else:
                self._take_over(found, batch, book, attaching, now)
        for outcome in self._on_device.values():
            if (outcome.queue, outcome.key) not in book.batches:
                self._take_over_on_device(outcome, book, attaching, now)

    def _take_over_on_device(self, outcome: Outcome, book: Book, attaching: Attaching, now: float) -> None:
        peer, batch = self._peer(outcome.holder), recalled_batch(outcome, now)
        attaching.adopt_on_device(outcome.holder, peer, batch, now)
        book.log(Level.INFO, Event.ADOPT, batch, state=batch.state.name, **who(peer))

    def _peer(self, holder: str) -> Peer:
        return self._holders.get(holder, _UNKNOWN)

    def _is_over(self, batch: MicroBatch, book: Book) -> bool:
        """Whether the daemon before was killed when the end of this was recorded, and its slot not yet free."""
        key = (batch.queue, batch.key)
        latest = self._on_device.get(key) or self._over.get(key)
        if latest is None:
            return False
        is_trained = latest.state is MicroBatchState.CONSUMED and book.slots[batch.slot].state is SlotState.READY
        return latest.attempt == batch.attempt or is_trained

    def _take_over(
        self, found: FoundSlot, batch: MicroBatch, book: Book, attaching: Attaching, now: float
    ) -> None:
        over = self._over.get((batch.queue, batch.key))
        batch.was_trained = over is not None and over.state is MicroBatchState.CONSUMED
        batch.was_reset = (batch.queue, batch.key, batch.attempt) in self._was_reset
        book.batches[batch.queue, batch.key] = batch
        if book.slots[found.index].state is SlotState.READY:
            book.queues.of(batch.queue).insert(batch)
        else:
            attaching.adopt(found.holder, self._peer(found.holder), batch, now)
        holder = who(self._peer(found.holder)) if found.holder else {}
        book.log(Level.INFO, Event.ADOPT, batch, state=book.slots[found.index].state.name, **holder)
