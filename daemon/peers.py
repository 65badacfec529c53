"""The orchestrators and inspectors that are known."""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Iterator

from forebay.wire import Peer

from .actions import Address

_NAME_CHARS = 64


@dataclasses.dataclass(slots=True)
class _Known:
    """A peer, and the monotonic second in which it last said something."""

    peer: Peer
    heard_at: float


class Peers:
    """Who said hello, up to a limit: who was silent longest is forgotten.

    Args:
        limit: How many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[Address, _Known] = OrderedDict()

    def __iter__(self) -> Iterator[Address]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, address: Address | None) -> Peer | None:
        """Returns who is at an address, if that is known."""
        known = self._known.get(address) if address is not None else None
        return known.peer if known is not None else None

    def latest(self, count: int) -> Iterator[tuple[Peer, float]]:
        """Yields those that said something last, and the monotonic second in which they did."""
        known = itertools.islice(reversed(self._known.values()), count)
        return ((one.peer, one.heard_at) for one in known)

    def greet(self, address: Address, peer: Peer, now: float) -> None:
        """Knows a peer from now on."""
        self._known[address] = _Known(shortened(peer), now)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def hear(self, address: Address, now: float) -> bool:
        """Notes that a peer said something; returns whether it is known."""
        known = self._known.get(address)
        if known is None:
            return False
        known.heard_at = now
        self._known.move_to_end(address)
        return True


def shortened(peer: Peer) -> Peer:
    """Returns a peer's description as it is kept and shown: its names may be of any length."""
    return Peer(name=peer.name[:_NAME_CHARS], pid=peer.pid, host=peer.host[:_NAME_CHARS])
