"""Where a daemon-fed queue's entries come from, and how the daemon hears what becomes of them."""

from __future__ import annotations

import contextlib
from typing import Protocol

from forebay.wire import ForebayError, Lend, LocalError, MicroBatchGoneError, MicroBatchState

from .entry_states import EntryState
from .host_tree import HostTree
from .slot_reader import SlotReader


class Teller(Protocol):
    """Tells the daemon; `DaemonFeed` does. All of it is called under the queue's lock."""

    def is_current(self, reader: SlotReader) -> bool:
        """Tells whether a reader is of the pool that the daemon has now."""

    def state_of(self, slot: LentSlot) -> EntryState:
        """Returns the state of a lent slot's entry."""

    def promoted(self, slot: LentSlot) -> None:
        """A slot is released: its bytes are on the device."""

    def finished(self, slot: LentSlot, reason: str) -> None:
        """A slot's micro-batch is consumed, if `reason` is empty, or dropped."""

    def finished_here(self, key: str) -> None:
        """A key was trained by bytes of this process."""


class LentSlot:
    """The origin of an entry that lies in a slot.

    Args:
        feed: Through which the daemon hears of it.
        lend: As the daemon lent it.
        reader: Of the pool that it was lent from.

    Attributes:
        attempt: The stage call that filled the slot; empty until it was read.
        was_transferred: Whether its bytes have been on the device, so that the slot was released.
    """

    def __init__(self, feed: Teller, lend: Lend, reader: SlotReader) -> None:
        self.lend = lend
        self.reader = reader
        self.attempt = ""
        self._feed = feed
        self._ahead: HostTree | None = None
        self.was_transferred = False

    def __repr__(self) -> str:
        return f"LentSlot({self.lend.key!r}, slot {self.lend.slot}, {'held' if self.is_held else 'released'})"

    @property
    def is_held(self) -> bool:
        """Whether the slot is lent and not released."""
        return not self.was_transferred and self._feed.is_current(self.reader)

    @property
    def is_on_host(self) -> bool:
        """Whether the slot has the only bytes: the daemon may lend it again if this trainer is gone."""
        return not self.was_transferred and self._feed.state_of(self) is EntryState.HOST

    def read(self) -> HostTree:
        """See `Origin`.

        Raises:
            MicroBatchGoneError: Its pool is gone; the daemon has it staged again.
            HostError: The slot cannot be read.
            TreeError: It holds no tree that can be had here.
        """
        if not self._feed.is_current(self.reader):
            raise MicroBatchGoneError(self.lend.key, MicroBatchState.LOST, "its pool is gone")
        if self._ahead is None:
            self.attempt, self._ahead = self.reader.read(self.lend)
        return self._ahead

    def read_ahead(self) -> None:
        """Reads it, so that `read` costs nothing; what goes wrong is left to that."""
        with contextlib.suppress(ForebayError):
            self.read()

    def transferred(self) -> None:
        """See `Origin`."""
        self._feed.promoted(self)
        self.was_transferred = True
        self._ahead = None

    def ended(self, reason: str) -> None:
        """See `Origin`."""
        self._feed.finished(self, reason)
        self._ahead = None


class OwnKey:
    """The origin of a key whose bytes are this process's own, staged here or given to a step.

    Args:
        feed: Through which the daemon hears of it.
        key: The key.
    """

    def __init__(self, feed: Teller, key: str) -> None:
        self._feed = feed
        self._key = key

    def read(self) -> HostTree:
        """See `Origin`; such an entry has its host tree from the start."""
        raise LocalError(f"the bytes of {self._key!r} are this process's own, and are lost")

    def transferred(self) -> None:
        """See `Origin`."""

    def ended(self, reason: str) -> None:
        """See `Origin`. What was dropped here leaves what the daemon has for its key as it is."""
        if not reason:
            self._feed.finished_here(self._key)
