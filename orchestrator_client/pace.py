"""A rate that a sender keeps to: to leave room on a link that others share, or to stand in for a slower one.

It decides when bytes may leave, and waits for nothing itself.
"""

from __future__ import annotations

import abc
import threading
from typing import Final

from forebay.wire import UsageError

CATCH_UP_S: Final = 0.02
"""Seconds of lateness that one sending makes up for: what a timer and a busy processor cost, and no more."""


class Pace(abc.ABC):
    """One wire of a stated rate; those who share it may be on several threads.

    Bytes may leave when the wire would have carried the last of them, as if nothing else limited it. These moments
    lie on one schedule: that somebody woke a little late makes nothing after it later. Bytes that were promised a
    moment have their place on the wire, also if they never leave.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = float("-inf")

    def wait_s(self, nbytes: int, now: float, *, goes_on: bool = False) -> float:
        """Gives the next bytes their place on the wire, behind all that were given one.

        Args:
            nbytes: How many.
            now: Monotonic second; the wire was idle until then if it had nothing else to carry. Nothing is saved
                up meanwhile.
            goes_on: Whether they follow other bytes of the same sending, so that being a little late is no idle
                time.

        Returns:
            Seconds to wait, from `now` on, before they may leave.
        """
        with self._lock:
            is_idle = now - self._free_at > (CATCH_UP_S if goes_on else 0.0)
            self._free_at = (now if is_idle else self._free_at) + self._carry_s(nbytes)
            return max(0.0, self._free_at - now)

    @abc.abstractmethod
    def _carry_s(self, nbytes: int) -> float:
        """Returns the seconds that the wire takes for the next bytes; called under the lock, once for each."""


class SteadyPace(Pace):
    """A wire that is always as fast.

    Args:
        bytes_per_s: Its rate.

    Raises:
        UsageError: The rate is not above 0.
    """

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        if not bytes_per_s > 0:
            raise UsageError("a pace needs a rate", got=bytes_per_s, limit="more than 0 bytes a second")
        self._bytes_per_s = bytes_per_s

    def __repr__(self) -> str:
        return f"SteadyPace({self._bytes_per_s:g} bytes a second)"

    def _carry_s(self, nbytes: int) -> float:
        return nbytes / self._bytes_per_s
