"""One entry of the staging queue: a host tree, and what to do where it came from."""

from __future__ import annotations

from typing import Protocol

from forebay.wire import HostError, LocalError

from .entry_states import ENTRY_TRANSITIONS, EntryEvent, EntryState
from .host_tree import HostTree, PlacedTree
from .transfer import OnDevice


class PromotionError(HostError):
    """A micro-batch could not be promoted for a reason that may pass; it stays where it is, and in its place."""

    def anew(self) -> PromotionError:
        """Returns the same error for one more to raise: it would collect the frames of all who raise it."""
        error = PromotionError(self.what, got=self.got, limit=self.limit, remedy=self.remedy)
        error.__cause__ = self.__cause__
        return error


class Origin(Protocol):
    """Where an entry came from. All but `read` are called under the queue's lock."""

    def read(self) -> HostTree:
        """Returns the host tree of an entry that was entered without one.

        Raises:
            ForebayError: It can never be had.
        """

    def transferred(self) -> None:
        """Its bytes are on the device, and nothing refers to the host's any more."""

    def ended(self, reason: str) -> None:
        """The micro-batch is consumed, if `reason` is empty, or dropped; no transfer of it is under way."""


class InProcess:
    """The origin of what was staged in this process: nobody else has to hear of it."""

    def read(self) -> HostTree:
        """See `Origin`; such an entry has its host tree from the start."""
        raise LocalError("an entry that was staged in process has lost its host tree")

    def transferred(self) -> None:
        """See `Origin`."""

    def ended(self, reason: str) -> None:
        """See `Origin`."""


class Entry:
    """A staged micro-batch.

    Args:
        key: Its key.
        origin: Where it came from.
        placed: The host tree and where it goes; None while only the origin has it.

    Attributes:
        state: Where it is.
        place: Its place in the queue's order; an entry that replaces another has the other's.
        placed: None from the moment on in which it is on the device.
        on_device: Its device arrays, while there are any.
        promote_s: Seconds that its transfer took.
        was_transferred: Whether its bytes have been on the device, so that its origin was told.
        failure: Why its last transfer failed. It rests until it is asked for or a step was dispatched.
        drop_reason: Why it was dropped while its bytes were under way.
    """

    __slots__ = (
        *("drop_reason", "failure", "key", "on_device", "origin", "placed", "place", "promote_s", "state"),
        *("was_transferred", "__weakref__"),
    )

    def __init__(self, key: str, origin: Origin, placed: PlacedTree | None = None) -> None:
        self.key = key
        self.origin = origin
        self.placed = placed
        self.place = -1
        self.on_device: OnDevice | None = None
        self.promote_s = 0.0
        self.was_transferred = False
        self.failure: Exception | None = None
        self.drop_reason = ""
        self.state = EntryState.HOST

    def __repr__(self) -> str:
        return f"Entry({self.key!r}, {self.state})"

    def let_go(self) -> None:
        """Lets its bytes go, wherever they are."""
        self.placed = self.on_device = None

    def apply(self, event: EntryEvent) -> None:
        """Moves the entry.

        Raises:
            LocalError: The table has no such move; nothing has moved.
        """
        after = ENTRY_TRANSITIONS.get((self.state, event))
        if after is None:
            raise LocalError(f"{self!r} cannot take {event.value!r}")
        self.state = after
