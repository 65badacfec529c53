"""How much is on the device, and what may begin there: the cap, and what `serialize` keeps apart."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque

from .entry import Entry
from .entry_states import MOVING, USES_DEVICE, EntryEvent, EntryState
from .transfer import Dispatched


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """Something that the device may be working on.

    Attributes:
        work: How to wait for it.
        holds_inputs: Whether a micro-batch's arrays are on the device for it.
    """

    work: Dispatched
    holds_inputs: bool


class DeviceRoom:
    """The device's side of a queue's books.

    Args:
        max_device_batches: Entries that may be on the device and not dispatched; 0 for any number.
        serialize: Whether transfers and the device's work exclude each other.
    """

    def __init__(self, max_device_batches: int, *, serialize: bool) -> None:
        self.cap = max_device_batches or math.inf
        self._serialize = serialize
        # How much of what runs may be unfinished when a transfer begins: one micro-batch beside the cap. Without a
        # bound, a trainer that never waits would pile them up.
        self._may_run = 0 if serialize else 1 if max_device_batches else math.inf
        self._entries: dict[EntryState, set[Entry]] = {state: set() for state in USES_DEVICE}
        self._running: deque[Running] = deque()
        self._inline_transfers = 0
        self._inline_steps = 0
        self._dispatching = 0
        self._waiting_to_dispatch = 0

    def __repr__(self) -> str:
        steps = self.count(EntryState.IN_STEP) + self._inline_steps
        running = sum(not running.work.is_done() for running in self._running)
        return f"{self.used} of {self.cap:g} on the device, {steps} in a step, {running} running"

    def count(self, state: EntryState) -> int:
        """Counts the entries in a state that uses the device."""
        return len(self._entries[state])

    def entries_in(self, state: EntryState) -> tuple[Entry, ...]:
        """Returns the entries in a state that uses the device."""
        return tuple(self._entries[state])

    @property
    def used(self) -> int:
        """How much of the cap is used."""
        return sum(map(len, self._entries.values()))

    @property
    def inline_steps(self) -> int:
        """Steps with a payload that was not staged, and that are not dispatched."""
        return self._inline_steps

    @property
    def running(self) -> tuple[Dispatched, ...]:
        """What the device may be working on, in order."""
        return tuple(running.work for running in self._running)

    @property
    def is_quiet(self) -> bool:
        """Whether the device has finished all that was dispatched, and nothing is being dispatched."""
        return self._first_to_wait_for(0) is None and not self._dispatching

    @property
    def is_held_by_steps(self) -> bool:
        """Whether there is no room before a step that has taken an entry dispatches it."""
        return not self.has_room and self.count(EntryState.IN_STEP) == self.used

    @property
    def has_room(self) -> bool:
        """Whether one more entry may come to the device."""
        return self.used < self.cap

    @property
    def is_left_to_a_step(self) -> bool:
        """Whether a step is on its way to a dispatch that a transfer in the background would hold up."""
        return self._serialize and self._inline_steps > 0

    @property
    def allows_transfer(self) -> bool:
        """Whether a transfer of an entry may begin."""
        if self._inline_transfers:
            return False
        return not self._serialize or not (self._dispatching or self._waiting_to_dispatch)

    @property
    def allows_dispatch(self) -> bool:
        """Whether work may be handed to the device."""
        moving = any(self._entries[state] for state in MOVING)
        return not self._serialize or not (moving or self._inline_transfers)

    @property
    def to_await_for_a_step(self) -> Dispatched | None:
        """What the device must have finished before a step may transfer a payload of its own, if anything."""
        return self._first_to_wait_for(0) if self._serialize and self._inline_transfers else None

    @property
    def to_await(self) -> Dispatched | None:
        """What the device must have finished before an entry's transfer begins, if anything."""
        counted = [index for index, running in enumerate(self._running) if running.holds_inputs or self._serialize]
        if not counted or len(counted) + self._inline_steps <= self._may_run:
            return None
        return self._first_to_wait_for(counted[0])

    def _first_to_wait_for(self, index: int) -> Dispatched | None:
        """Returns the first that can be waited for: what cannot any more is done when later work is."""
        later = (running.work for running in itertools.islice(self._running, index, None))
        return next((work for work in later if not work.is_lost()), None)

    def move(self, entry: Entry, event: EntryEvent) -> None:
        """Moves an entry; it counts from its promotion until it is dispatched, or let go."""
        before = entry.state
        entry.apply(event)
        if before in USES_DEVICE:
            self._entries[before].discard(entry)
        if entry.state in USES_DEVICE:
            self._entries[entry.state].add(entry)

    def runs(self, work: Dispatched | None, *, holds_inputs: bool) -> None:
        """Notes that the device works on something."""
        while not self._serialize and self._running and self._running[0].work.is_done():
            self._running.popleft()
        if work is not None:
            self._running.append(Running(work, holds_inputs))

    def awaited(self, work: Dispatched) -> None:
        """Notes that the device has finished something, and so all that it began before."""
        if any(running.work is work for running in self._running):
            while self._running.popleft().work is not work:
                pass

    def forget_running(self) -> None:
        """Lets go of what the device may be working on."""
        self._running.clear()

    def inline_begins(self) -> None:
        """Notes that a step transfers a payload of its own: nothing else begins that it would have to wait for."""
        self._inline_transfers += 1

    def inline_ends(self, *, in_step: bool) -> None:
        """Notes the end of that transfer, and whether its step goes on."""
        self._inline_transfers -= 1
        self._inline_steps += in_step

    def inline_step_begins(self) -> None:
        """Notes that a step begins with arrays that are on the device already."""
        self._inline_steps += 1

    def inline_dispatched(self) -> None:
        """Notes that such a step has handed its work to the device, or failed to."""
        self._inline_steps -= 1

    def dispatch_is_due(self) -> None:
        """Notes that a step waits to hand its work to the device: no transfer begins before it."""
        self._waiting_to_dispatch += 1

    def dispatch_is_no_longer_due(self) -> None:
        """Takes that back."""
        self._waiting_to_dispatch -= 1

    def dispatch_begins(self) -> None:
        """Notes that work is being handed to the device."""
        self._dispatching += 1

    def dispatch_ends(self) -> None:
        """Notes the end of that."""
        self._dispatching -= 1
