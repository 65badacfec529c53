"""A look that serves everybody who asks within a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from forebay.wire import WaitTimeoutError

T = TypeVar("T")

_LOOK_S: Final = 5.0


class SharedLook(Generic[T]):
    """Takes a look when somebody asks and the last one is old; safe from any thread.

    Args:
        look: Takes one; what it raises goes to who asked, and the next one tries again.
        fresh_s: Seconds for which one is told again.
        look_s: Seconds to wait for a look that somebody else takes.
        clock: Tells monotonic seconds.
    """

    def __init__(
        self,
        look: Callable[[], T],
        fresh_s: float,
        *,
        look_s: float = _LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._fresh_s = fresh_s
        self._look_s = look_s
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None

    def take(self) -> T:
        """Returns a look that was begun no longer ago than it is fresh.

        Raises:
            WaitTimeoutError: Somebody else's look did not end in time.
        """
        if not self._lock.acquire(timeout=self._look_s):
            raise WaitTimeoutError(f"another's look at the daemon did not end within {self._look_s:g} s")
        try:
            began = self._clock()
            if self._last is None or began - self._last[0] > self._fresh_s:
                self._last = began, self._look()
            return self._last[1]
        finally:
            self._lock.release()
