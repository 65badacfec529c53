"""How threads and signal handlers reach the loop: a queue of events and a file descriptor that wakes a poll."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator

Event = Callable[[], None]


class Mailbox:
    """Events that the loop runs on its own thread, in the order in which they were posted."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # A number that was closed may be another file's already. Reentrant: a handler may come in the middle.
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Returns the descriptor that is readable while there are events."""
        return self._fd

    def post(self, event: Event) -> None:
        """Adds an event; safe from any thread and from a signal handler."""
        self._events.append(event)
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def take(self) -> Iterator[Event]:
        """Yields what was posted."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return
        while self._events:
            yield self._events.popleft()

    def close(self) -> None:
        """Closes the descriptor; what is posted afterwards is never run."""
        with self._lock:
            fd, self._fd = self._fd, -1
            os.close(fd)
