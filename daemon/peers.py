"""The orchestrators and inspectors that are known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from forebay.wire import Peer

from .actions import Address

_NAME_CHARS = 64


class Peers:
    """Who said hello, up to a limit: who was silent longest is forgotten.

    Args:
        limit: How many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[Address, Peer] = OrderedDict()

    def __iter__(self) -> Iterator[Address]:
        return iter(self._known)

    def greet(self, address: Address, peer: Peer) -> None:
        """Knows a peer from now on."""
        self._known[address] = shortened(peer)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def hear(self, address: Address) -> bool:
        """Notes that a peer said something; returns whether it is known."""
        if address not in self._known:
            return False
        self._known.move_to_end(address)
        return True


def shortened(peer: Peer) -> Peer:
    """Returns a peer's description as it is kept and shown: its names may be of any length."""
    return Peer(name=peer.name[:_NAME_CHARS], pid=peer.pid, host=peer.host[:_NAME_CHARS])
