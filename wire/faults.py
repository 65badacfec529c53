"""How often peers did what came to nothing, who did so last and when, for a status to show."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter


@dataclasses.dataclass(frozen=True, slots=True)
class LastFault:
    """The last time that something happened.

    Attributes:
        at: Monotonic second.
        by: Who did it, or `unknown`.
    """

    at: float
    by: str


class Faults:
    """Counters by reason. Safe from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last: dict[str, LastFault] = {}
        self._lock = threading.Lock()

    def count(self, reason: str, last: LastFault | None = None) -> None:
        """Notes that it happened once more.

        Args:
            reason: What happened.
            last: When, and who did it; None where nobody will ask.
        """
        with self._lock:
            self._counts[reason] += 1
            if last is not None:
                self._last[reason] = last

    def counts(self) -> Counter[str]:
        """Returns how often each did."""
        with self._lock:
            return self._counts.copy()

    def last(self) -> dict[str, LastFault]:
        """Returns the last of each, where it is known."""
        with self._lock:
            return self._last.copy()
