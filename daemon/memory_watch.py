"""A look at this process's own memory, now and then: ending in order is better than the kernel's killer.

ZeroMQ bounds the messages that it buffers, but not the frames of one message: a peer that sends a message without
an end makes it take memory for as long as it likes, no event tells of it, and a ROUTER cannot cut one peer off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from forebay.wire import GIB, HostError

_FASTEST_BYTES_PER_S: Final = 4 * GIB
"""Faster than anybody fills memory over a socket: looks come the sooner, the less room is left."""

_SHORTEST_S: Final = 0.02
_LONGEST_S: Final = 1.0


class MemoryWatch:
    """Looks at the private memory of this process.

    Args:
        max_bytes: Of private memory; 0 for no bound.

    Attributes:
        next_look_at: Monotonic second at which the next look is due; None for never.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.next_look_at: float | None = 0.0 if max_bytes else None

    def look(self, now: float) -> int | None:
        """Looks, if that is due.

        Returns:
            Bytes of private memory; None if none was due.

        Raises:
            HostError: There is too much; the message says how to go on.
        """
        if self.next_look_at is None or now < self.next_look_at:
            return None
        private = private_bytes()
        if private > self._max_bytes:
            raise HostError(
                "the daemon holds too much private memory; it ends, and the next one takes over its pool",
                got=f"{private} bytes",
                limit=f"{self._max_bytes} bytes, max_private_bytes",
                remedy="find the peer that sends without end, or raise max_private_bytes",
            )
        room_s = (self._max_bytes - private) / _FASTEST_BYTES_PER_S
        self.next_look_at = now + min(_LONGEST_S, max(_SHORTEST_S, room_s))
        return private


def private_bytes() -> int:
    """Returns the bytes of memory that this process alone has, without shared memory. Source: proc(5), statm."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")
