"""How much is on the device, and what may begin there: the cap, and what `serialize` keeps apart."""

from __future__ import annotations

import math
from collections import Counter, deque

from .entry import Entry
from .entry_states import MOVING, USES_DEVICE, EntryEvent, EntryState
from .transfer import Dispatched


class DeviceRoom:
    """The device's side of a queue's books.

    Args:
        max_device_batches: Entries that may be on the device and not dispatched; 0 for any number.
        serialize: Whether transfers and the device's work exclude each other.
    """

    def __init__(self, max_device_batches: int, *, serialize: bool) -> None:
        self.cap = max_device_batches or math.inf
        self._serialize = serialize
        # How many dispatched micro-batches may still have their inputs on the device when a transfer begins: one
        # beside the cap. Without a bound, a trainer that never waits would pile them up.
        self._may_run = 0 if serialize else 1 if max_device_batches else math.inf
        self._entries: set[Entry] = set()
        self._running: deque[Dispatched] = deque()
        self._inline_transfers = 0
        self._inline_steps = 0
        self._dispatching = 0

    def __repr__(self) -> str:
        steps = self.count(EntryState.IN_STEP) + self._inline_steps
        return (
            f"{len(self._entries)} of {self.cap:g} on the device, {steps} in a step, {len(self._running)} running"
        )

    def count(self, state: EntryState) -> int:
        """Counts the entries in a state that uses the device."""
        return Counter(entry.state for entry in self._entries)[state]

    @property
    def inline_steps(self) -> int:
        """Steps with a payload that was not staged, and that are not dispatched."""
        return self._inline_steps

    @property
    def running(self) -> tuple[Dispatched, ...]:
        """What the device may be working on."""
        return tuple(self._running)

    @property
    def has_room(self) -> bool:
        """Whether one more entry may come to the device."""
        return len(self._entries) < self.cap

    @property
    def is_taken_by_a_step(self) -> bool:
        """Whether no transfer that a step does not wait for may begin: the step would have to wait for it."""
        return self._inline_transfers > 0

    @property
    def is_dispatching(self) -> bool:
        """Whether work is being handed to the device just now; told only where all is serialized."""
        return self._dispatching > 0

    @property
    def allows_transfer(self) -> bool:
        """Whether a transfer may begin at all."""
        return not self._serialize or not (self._dispatching or self._inline_transfers)

    @property
    def allows_dispatch(self) -> bool:
        """Whether work may be handed to the device."""
        moving = any(entry.state in MOVING for entry in self._entries)
        return not self._serialize or not (moving or self._inline_transfers)

    @property
    def to_await(self) -> Dispatched | None:
        """What the device must have finished before a transfer begins, if anything."""
        surplus = len(self._running) + self._inline_steps > self._may_run
        return self._running[0] if self._running and surplus else None

    def move(self, entry: Entry, event: EntryEvent) -> None:
        """Moves an entry; it counts from its promotion until it is dispatched, or let go."""
        entry.apply(event)
        if entry.state in USES_DEVICE:
            self._entries.add(entry)
        else:
            self._entries.discard(entry)

    def runs(self, work: Dispatched | None) -> None:
        """Notes that the device works on something."""
        while self._running and self._running[0].is_done():
            self._running.popleft()
        if work is not None:
            self._running.append(work)

    def awaited(self, work: Dispatched) -> None:
        """Notes that the device has finished something."""
        if work in self._running:
            self._running.remove(work)

    def inline_begins(self) -> None:
        """Notes that a step transfers a payload of its own: nothing else begins that it would have to wait for."""
        self._inline_transfers += 1

    def inline_ends(self, *, in_step: bool) -> None:
        """Notes the end of that transfer, and whether its step goes on."""
        self._inline_transfers -= 1
        self._inline_steps += in_step

    def inline_dispatched(self) -> None:
        """Notes that such a step has handed its work to the device, or failed to."""
        self._inline_steps -= 1

    def dispatch_begins(self) -> None:
        """Notes that work is being handed to the device."""
        self._dispatching += 1

    def dispatch_ends(self) -> None:
        """Notes the end of that."""
        self._dispatching -= 1
