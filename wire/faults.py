"""How often peers did what came to nothing, for a status to show."""

from __future__ import annotations

import threading
from collections import Counter


class Faults:
    """Counters by reason. Safe from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, reason: str) -> None:
        """Notes that it happened once more."""
        with self._lock:
            self._counts[reason] += 1

    def counts(self) -> Counter[str]:
        """Returns how often each did."""
        with self._lock:
            return self._counts.copy()
