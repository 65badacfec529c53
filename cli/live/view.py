"""What whoever looks has chosen to see."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, Final

from forebay.shm.states import SlotState
from forebay.wire import SlotStatus

from .keys import Key


class Sort(enum.Enum):
    """By what slots are sorted."""

    SLOT = "slot"
    AGE = "age"
    BYTES = "bytes"
    STATE = "state"


_SORTS: Final = tuple(Sort)
_STATES: Final = {state.name: -state for state in SlotState}
_BY: Final[dict[Sort, Callable[[SlotStatus], Any]]] = {
    Sort.SLOT: lambda slot: slot.index,
    Sort.AGE: lambda slot: -slot.age_s,
    Sort.BYTES: lambda slot: -slot.payload_bytes,
    Sort.STATE: lambda slot: _STATES.get(slot.state, -len(_STATES)),
}
"""The oldest, the largest, and those that are farthest on their way come first."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What is shown, and how.

    Attributes:
        sort: By what slots are sorted.
        is_reversed: Whether the last of them comes first.
        first: How many slots are above the first that is shown.
        is_frozen: Whether what is shown stands still.
        is_helping: Whether help is shown.
        is_over: Whether nothing is to be shown any more.
    """

    sort: Sort = Sort.SLOT
    is_reversed: bool = False
    first: int = 0
    is_frozen: bool = False
    is_helping: bool = False
    is_over: bool = False

    def pressed(self, key: Key, *, slots: int, rows: int) -> View:
        """Returns the view after a key.

        Args:
            key: Which.
            slots: How many there are.
            rows: How many of them are shown at a time.
        """
        match key:
            case Key.QUIT:
                return dataclasses.replace(self, is_over=True)
            case Key.FREEZE:
                return dataclasses.replace(self, is_frozen=not self.is_frozen)
            case Key.SORT:
                sort = _SORTS[(_SORTS.index(self.sort) + 1) % len(_SORTS)]
                return dataclasses.replace(self, sort=sort, first=0)
            case Key.REVERSE:
                return dataclasses.replace(self, is_reversed=not self.is_reversed, first=0)
            case Key.HELP:
                return dataclasses.replace(self, is_helping=not self.is_helping)
        return self._scrolled(key, slots, rows)

    def _scrolled(self, key: Key, slots: int, rows: int) -> View:
        by = {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -rows, Key.PAGE_DOWN: rows}[key]
        return dataclasses.replace(self, first=max(0, min(self.first + by, slots - rows)))

    def in_order(self, slots: Sequence[SlotStatus]) -> list[SlotStatus]:
        """Returns slots as they are to be shown; those that are alike by their index."""
        by = _BY[self.sort]
        return sorted(slots, key=lambda slot: (by(slot), slot.index), reverse=self.is_reversed)
