"""The staging queue's decisions: its order, what is promoted next, what a step gets. No thread, no clock, no jax.

The queue calls these methods under its bookkeeping lock; each takes microseconds.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Iterator

from .device_room import DeviceRoom
from .entry import Entry, PromotionError
from .entry_states import EntryEvent, EntryState
from .host_tree import PlacedTree
from .statistics import QueueStats, Totals
from .transfer import Dispatched, OnDevice

_SHOWN_ENTRIES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Await:
    """Wait until the device has finished this, then ask again."""

    work: Dispatched


@dataclasses.dataclass(frozen=True, slots=True)
class Promote:
    """Bring this entry to the device."""

    entry: Entry


@dataclasses.dataclass(frozen=True, slots=True)
class Demote:
    """Bring this entry back to the host, to make room for one that is waited for."""

    entry: Entry
    wanted: Entry


Work = Await | Promote | Demote


class QueueBooks:
    """The books of one queue.

    Args:
        max_device_batches: Entries that may be on the device and not dispatched; 0 for any number.
        serialize: Whether transfers and the device's work exclude each other.
    """

    def __init__(self, max_device_batches: int, *, serialize: bool) -> None:
        self.room = DeviceRoom(max_device_batches, serialize=serialize)
        self.totals = Totals()
        self._entries: dict[str, Entry] = {}
        self._newest = itertools.count()
        # What may be promoted ahead, by its place. Those that moved on since are passed over, and not kept alive.
        self._ahead: list[tuple[int, int, weakref.ref[Entry]]] = []
        self._resting: set[Entry] = set()
        self._wanted: Counter[str] = Counter()
        self._takers = 0

    def __repr__(self) -> str:
        shown = [
            f"{key!r} {entry.state}" for key, entry in itertools.islice(self._entries.items(), _SHOWN_ENTRIES)
        ]
        more = len(self) - len(shown)
        return f"[{', '.join(shown)}{f' and {more} more' if more else ''}], {self.room!r}"

    def __len__(self) -> int:
        return len(self._entries)

    def first_keys(self, count: int) -> list[str]:
        """Returns the first keys that are queued, in order."""
        return list(itertools.islice(self._entries, count))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are queued, in order."""
        return tuple(self._entries)

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys that somebody waits for and that are not queued."""
        return tuple(key for key in self._wanted if key not in self._entries)

    def free_places(self, unlimited: int) -> int:
        """Returns how many more entries a feed should have queued, so that the device never waits for one."""
        ahead = unlimited if math.isinf(self.room.cap) else int(self.room.cap)
        return max(0, ahead - len(self._entries))

    def statistics(self) -> QueueStats:
        """Returns the present counts and the totals."""
        on_device = self.room.count(EntryState.ON_DEVICE)
        return self.totals.frozen(
            queued=len(self._entries) - on_device,
            on_device=on_device,
            in_step=self.room.count(EntryState.IN_STEP),
            inline_steps=self.room.inline_steps,
        )

    def find(self, key: str | None) -> Entry | None:
        """Finds a queued key, or the first entry that nobody waits for by its key."""
        if key is not None:
            return self._entries.get(key)
        return next((entry for key, entry in self._entries.items() if key not in self._wanted), None)

    # What the sources do.

    def add(self, entry: Entry) -> Entry | None:
        """Enters an entry: at the end, or in the place of the one with its key.

        Returns:
            The entry that was replaced. Let it go where freeing its memory hurts nobody.
        """
        replaced = self._entries.get(entry.key)
        entry.place = next(self._newest) if replaced is None else replaced.place
        if replaced is not None:
            self._end(replaced, "replaced", "a newer one with its key was staged")
        self._entries[entry.key] = entry
        self._may_come_ahead(entry)
        self.totals.staged += 1
        return replaced

    def drop(self, entry: Entry, cause: str, reason: str) -> None:
        """Takes a queued entry out.

        Args:
            entry: Which.
            cause: What it is counted under.
            reason: What its origin hears; empty if its micro-batch was consumed by other means.
        """
        del self._entries[entry.key]
        self._end(entry, cause, reason)

    def drop_stale(self, entry: Entry, reason: str) -> None:
        """Drops an entry whose first transfer has not begun, or does not because it is stale."""
        if entry.state is not EntryState.ABANDONED:
            entry.was_stale = True
            self.drop(entry, "stale", reason)
        if entry.state is EntryState.ABANDONED:
            # Its transfer was to begin.
            self.room.move(entry, EntryEvent.FAIL)
            entry.origin.ended(entry.drop_reason)

    def reset(self) -> list[Entry]:
        """Drops all that is queued and starts the counts anew; returns what was dropped."""
        dropped = list(self._entries.values())
        for entry in dropped:
            self.drop(entry, "reset", "the trainer reset its queue")
        self.totals = Totals()
        return dropped

    def forget(self) -> list[Entry]:
        """Takes out all that is queued, and tells nobody; returns it."""
        forgotten = list(self._entries.values())
        for entry in forgotten:
            self.room.move(entry, EntryEvent.DROP)
        self.room.forget_running()
        self._entries.clear()
        self._ahead.clear()
        self._resting.clear()
        return forgotten

    def _end(self, entry: Entry, cause: str, reason: str) -> None:
        was_rejected = entry.state is EntryState.REJECTED
        self.room.move(entry, EntryEvent.DROP)
        self._resting.discard(entry)
        if was_rejected:
            # It was counted, and its origin told, when it was rejected.
            return
        self.totals.drops[cause] += 1
        if entry.state is EntryState.ABANDONED:
            entry.drop_reason = reason
        else:
            entry.origin.ended(reason)

    # What the promoter does.

    def next_work(self) -> Work | None:
        """Chooses what to do next.

        An entry that somebody waits for comes first, in place of one that waits on the device if need be; others
        come in order, while there is room and no step needs the link to the device for itself.
        """
        for_a_step = self.room.to_await_for_a_step
        if for_a_step is not None:
            return Await(for_a_step)
        if not self.room.allows_transfer:
            return None
        return self._work_that_is_waited_for() or self._work_ahead()

    def _work_that_is_waited_for(self) -> Work | None:
        for entry in self._waited_for():
            if self.room.has_room:
                return self._begin(Promote(entry), EntryEvent.PROMOTE)
            victim = self._last_on_device()
            if victim is not None:
                return self._begin(Demote(victim, entry), EntryEvent.DEMOTE)
        return None

    def _work_ahead(self) -> Work | None:
        if self.room.is_left_to_a_step or not self.room.has_room:
            return None
        while self._ahead:
            entry = self._ahead[0][-1]()
            if entry is not None and self._may_move(entry):
                return self._begin(Promote(entry), EntryEvent.PROMOTE)
            heapq.heappop(self._ahead)
        return None

    def _may_come_ahead(self, entry: Entry) -> None:
        heapq.heappush(self._ahead, (entry.place, next(self._newest), weakref.ref(entry)))

    def will_promote(self, entry: Entry) -> bool:
        """Tells whether an entry on the host will be promoted without a step having to begin or end."""
        return self.room.has_room and self._may_move(entry)

    def _begin(self, work: Promote | Demote, event: EntryEvent) -> Work:
        to_await = self.room.to_await
        if to_await is not None:
            return Await(to_await)
        self.room.move(work.entry, event)
        return work

    def _may_move(self, entry: Entry) -> bool:
        return entry.state is EntryState.HOST and entry not in self._resting

    def _waited_for(self) -> Iterator[Entry]:
        found = [self._entries.get(key) for key in self._wanted]
        if self._takers:
            found.append(self.find(None))
        return (entry for entry in found if entry is not None and self._may_move(entry))

    def _last_on_device(self) -> Entry | None:
        """Returns the entry whose turn on the device is farthest away, and that nobody waits for."""
        head = self.find(None) if self._takers else None
        waiting = self.room.entries_in(EntryState.ON_DEVICE)
        candidates = [entry for entry in waiting if entry is not head and entry.key not in self._wanted]
        return max(candidates, key=lambda entry: entry.place, default=None)

    def arrived(self, entry: Entry, on_device: OnDevice) -> None:
        """Notes that an entry is on the device."""
        self.room.move(entry, EntryEvent.ARRIVE)
        entry.placed = None
        if entry.state is EntryState.GONE:
            entry.origin.ended(entry.drop_reason)
            return
        entry.on_device = on_device
        if not entry.was_transferred:
            entry.was_transferred = True
            entry.origin.transferred()

    def failed(self, entry: Entry, failure: PromotionError) -> None:
        """Notes that an entry could not be promoted for a reason that may pass: it rests in its place."""
        self.room.move(entry, EntryEvent.FAIL)
        self._rest_or_end(entry, failure)

    def rejected(self, entry: Entry, failure: Exception, reason: str) -> None:
        """Notes that an entry can never be promoted; it keeps its place until somebody is told."""
        self.room.move(entry, EntryEvent.REJECT)
        if entry.state is EntryState.REJECTED:
            self.totals.drops["rejected"] += 1
        entry.failure, entry.placed = failure, None
        entry.origin.ended(entry.drop_reason or reason)

    def returned(self, entry: Entry, placed: PlacedTree) -> None:
        """Notes that an entry is back on the host."""
        self.room.move(entry, EntryEvent.RETURN)
        entry.on_device = None
        if entry.state is EntryState.GONE:
            entry.origin.ended(entry.drop_reason)
            return
        self.totals.demotions += 1
        entry.placed = placed
        self._may_come_ahead(entry)

    def stayed(self, work: Demote, failure: PromotionError) -> None:
        """Notes that an entry could not be brought back: the one that is waited for cannot come now."""
        self.room.move(work.entry, EntryEvent.FAIL)
        if work.entry.state is EntryState.GONE:
            work.entry.on_device = None
            work.entry.origin.ended(work.entry.drop_reason)
        if work.wanted.state is EntryState.HOST:
            self._rest_or_end(work.wanted, failure)

    def _rest_or_end(self, entry: Entry, failure: PromotionError) -> None:
        if entry.state is EntryState.GONE:
            entry.origin.ended(entry.drop_reason)
            return
        self.totals.failures += 1
        entry.failure = failure
        self._resting.add(entry)

    # What a step does.

    def want(self, key: str | None) -> None:
        """Notes that somebody waits for a key, or for the first that nobody else waits for by its key."""
        if key is None:
            self._takers += 1
        else:
            self._wanted[key] += 1
        entry = self.find(key)
        if entry is not None:
            self._wake(entry)

    def unwant(self, key: str | None) -> None:
        """Takes that back."""
        if key is None:
            self._takers -= 1
        elif self._wanted[key] > 1:
            self._wanted[key] -= 1
        else:
            del self._wanted[key]

    def take(self, entry: Entry) -> None:
        """Hands out an entry that is on the device or rejected."""
        self.room.move(entry, EntryEvent.TAKE)
        del self._entries[entry.key]
        self.totals.taken += entry.state is EntryState.IN_STEP

    def dispatched(self, entry: Entry | None, work: Dispatched | None) -> None:
        """Notes that a step has handed its micro-batch's work to the device, or failed to.

        Args:
            entry: The step's entry; None if its payload was not staged.
            work: What the device does now, if that is known.
        """
        if entry is None:
            self.room.inline_dispatched()
        else:
            self.room.move(entry, EntryEvent.DISPATCH)
            entry.on_device = None
        self.room.runs(work, holds_inputs=True)
        for resting in tuple(self._resting):
            self._wake(resting)

    def _wake(self, entry: Entry) -> None:
        if entry in self._resting:
            self._resting.remove(entry)
            entry.failure = None
            self._may_come_ahead(entry)
