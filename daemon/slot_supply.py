"""Which FREE slot serves which micro-batch, and when slots grow."""

from __future__ import annotations

from forebay.shm import Slot, SlotState
from forebay.wire import Event

from .actions import Level, ReserveSlot
from .book import Book


class SlotSupply:
    """The FREE slots, and those that are growing.

    Slots grow to the largest micro-batch that was seen: when one is needed, and then, one after another, ahead of
    their need.

    Args:
        book: The shared books.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._growing: set[int] = set()
        self._largest_file_bytes = 0

    def is_growing(self, index: int) -> bool:
        """Whether a slot's file is being enlarged; it cannot be loaned meanwhile."""
        return index in self._growing

    def choose(self, file_bytes: int, *, may_grow: bool) -> Slot | None:
        """Chooses a FREE slot for a file of this size, or None if there is none.

        The smallest that fits keeps the large ones for large micro-batches; where none fits, the largest grows
        least, if one may.
        """
        free = [
            slot for slot in self._book.slots if slot.state is SlotState.FREE and not self.is_growing(slot.index)
        ]
        fitting = [slot for slot in free if slot.slot_bytes >= file_bytes]
        if fitting:
            return min(fitting, key=lambda slot: slot.slot_bytes)
        return max(free, key=lambda slot: slot.slot_bytes, default=None) if may_grow else None

    def has_fitting(self, file_bytes: int) -> bool:
        """Whether any slot, whatever it holds now, is large enough for a file of this size."""
        return any(slot.slot_bytes >= file_bytes for slot in self._book.slots)

    def grow(self, index: int, file_bytes: int) -> None:
        """Has a slot's file enlarged; `grown` or `failed` follows."""
        self._growing.add(index)
        self._book.out.do(ReserveSlot(index, file_bytes))

    def grown(self, index: int, file_bytes: int) -> None:
        """Hears that a slot's file has its new size."""
        self._growing.discard(index)
        self._book.slots[index].slot_bytes = file_bytes
        self._largest_file_bytes = max(self._largest_file_bytes, file_bytes)

    def failed(self, index: int, words: str) -> None:
        """Hears that a slot's file cannot grow; from now on only an offer that needs the room tries."""
        self._growing.discard(index)
        self._largest_file_bytes = 0
        self._book.out.log(Level.WARNING, Event.RESERVE_FAILED, slot=index, words=words)

    def grow_ahead(self) -> None:
        """Has the next smaller FREE slot enlarged, unless something grows already."""
        if self._growing or self._book.draining:
            return
        for slot in self._book.slots:
            if slot.state is SlotState.FREE and slot.slot_bytes < self._largest_file_bytes:
                self.grow(slot.index, self._largest_file_bytes)
                return
