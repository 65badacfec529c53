"""The states of all slots. Decides nothing and touches no memory: it only refuses illegal moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from forebay.wire import LocalError

from .states import SLOT_TRANSITIONS, SlotEvent, SlotState


class IllegalTransitionError(LocalError):
    """A move that the slot table does not have; nothing has moved."""


@dataclasses.dataclass(slots=True)
class Slot:
    """One slot as the table knows it.

    Attributes:
        index: Its number in the pool.
        state: Assigned by `SlotTable.apply` alone.
        generation: Grows by one at each loan.
        slot_bytes: Bytes of its file that are reserved.
    """

    index: int
    state: SlotState = SlotState.FREE
    generation: int = 0
    slot_bytes: int = 0


class SlotTable:
    """All slots of a pool.

    Args:
        slots: The slots in order of index, as created or as found in an adopted pool.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = slots

    def __repr__(self) -> str:
        return f"SlotTable({', '.join(f'{slot.index}:{slot.state.name}' for slot in self._slots)})"

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def is_current(self, index: int, generation: int) -> bool:
        """Tells whether a slot exists and is at this generation."""
        return 0 <= index < len(self._slots) and self._slots[index].generation == generation

    def apply(self, index: int, generation: int, event: SlotEvent) -> Slot:
        """Moves a slot.

        Args:
            index: Which slot.
            generation: The generation that the caller means; for a loan, the one before it.
            event: What happened.

        Returns:
            The slot in its new state.

        Raises:
            IllegalTransitionError: Wrong generation, or the table has no such move; nothing has moved.
        """
        slot = self._slots[index]
        after = SLOT_TRANSITIONS.get((slot.state, event))
        if after is None or slot.generation != generation:
            raise IllegalTransitionError(
                f"slot {index} generation {slot.generation} is {slot.state.name} and cannot take "
                f"{event.value!r} for generation {generation}"
            )
        slot.state = after
        if event is SlotEvent.LOAN:
            slot.generation += 1
        return slot
