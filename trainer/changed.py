"""The bookkeeping lock of a staging queue, and how a change is told to those whom it concerns."""

from __future__ import annotations

import threading


class Changed(threading.Condition):
    """A lock with two conditions: one that everybody waits for, and one for the promoter alone.

    Most changes are work for the promoter, and nothing to those who wait for its end: to wake them each time would
    cost more than the bookkeeping itself.

    Attributes:
        work: What the promoter waits for.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        super().__init__(lock)
        self.work = threading.Condition(lock)

    def notify_all(self) -> None:
        """Wakes everybody."""
        super().notify_all()
        self.work.notify_all()

    def notify_takers(self) -> None:
        """Wakes everybody but the promoter."""
        super().notify_all()
