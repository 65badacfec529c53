"""One entry of the staging queue: a host tree, and what to do where it came from."""

from __future__ import annotations

import math
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
        expires_at: Monotonic second from which on its first transfer may not begin.

    Attributes:
        state: Where it is.
        place: Its place in the queue's order; an entry that replaces another has the other's.
        placed: None from the moment on in which it is on the device.
        on_device: Its device arrays, while there are any.
        promote_s: Seconds that its transfer took.
        was_transferred: Whether its bytes have been on the device, so that its origin was told.
        failure: Why its last transfer failed. It rests until it is asked for or a step was dispatched.
        drop_reason: Why it was dropped while its bytes were under way.
        stale_reason: Why its first transfer may not begin, if the daemon said so.
        was_stale: Whether it was dropped because it was stale.
    """

    __slots__ = (
        *("drop_reason", "failure", "key", "on_device", "origin", "placed", "place", "promote_s", "state"),
        *("expires_at", "stale_reason", "was_stale", "was_transferred", "__weakref__"),
    )

    def __init__(
        self, key: str, origin: Origin, placed: PlacedTree | None = None, *, expires_at: float = math.inf
    ) -> None:
        self.key = key
        self.origin = origin
        self.placed = placed
        self.place = -1
        self.on_device: OnDevice | None = None
        self.promote_s = 0.0
        self.was_transferred = False
        self.failure: Exception | None = None
        self.drop_reason = ""
        self.expires_at = expires_at
        self.stale_reason = ""
        self.was_stale = False
        self.state = EntryState.HOST

    def __repr__(self) -> str:
        return f"Entry({self.key!r}, {self.state})"

    def why_stale(self, now: float) -> str:
        """Returns why its transfer must not begin; empty if it may. What was on the device once stays."""
        if self.was_transferred:
            return ""
        if self.stale_reason or now < self.expires_at:
            return self.stale_reason
        return f"stale: its time was over {now - self.expires_at:.1f} s before it could be promoted"

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
