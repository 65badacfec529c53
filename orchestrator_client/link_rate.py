"""How fast a link is, seen from what it takes."""

from __future__ import annotations

from typing import Final

from forebay.wire import MIB

_BUFFERED_BYTES: Final = 16 * MIB
"""What ZeroMQ and the kernel take at once: it says nothing about the link."""
_WINDOW_BYTES: Final = 8 * MIB


class LinkRate:
    """Estimates a link's rate; for one thread at a time.

    While the sender has to wait, the link is the limit, and carries what leaves. While it never waits, the link is
    at least that fast. So a link that becomes faster while chunks are encoded is known only to be as fast as the
    encoders, until one is measured with chunks that travel raw.

    Attributes:
        bytes_per_s: The estimate; None before there is one.
    """

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self._left_out = 0
        self._began_at = 0.0
        self._bytes = 0
        self._has_waited = False

    def __repr__(self) -> str:
        return f"LinkRate({self.bytes_per_s})"

    def begin(self) -> None:
        """Hears that a sending begins, with nothing on its way."""
        self._left_out = 0
        self._bytes = 0

    def sent(self, nbytes: int, *, has_waited: bool, now: float) -> None:
        """Hears that bytes have left.

        Args:
            nbytes: How many.
            has_waited: Whether they had to wait for the link.
            now: Seconds, when they had left.
        """
        if self._left_out < _BUFFERED_BYTES:
            self._left_out += nbytes
            self._start_window(now)
            return
        self._bytes += nbytes
        self._has_waited |= has_waited
        if self._bytes >= _WINDOW_BYTES and now > self._began_at:
            seen = self._bytes / (now - self._began_at)
            self.bytes_per_s = seen if self._has_waited else max(seen, self.bytes_per_s or 0.0)
            self._start_window(now)

    def _start_window(self, now: float) -> None:
        self._began_at = now
        self._bytes = 0
        self._has_waited = False
