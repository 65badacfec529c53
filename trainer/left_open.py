"""What happens to a queue that nobody closes: its threads end, and a daemon hears what was finished.

At the interpreter's exit a thread that is inside of jax would crash it, and reports that are on their way would be
lost: the daemon would take trained micro-batches for lost ones.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref

from forebay.wire import ForebayError

from .feed import Feed
from .promoter import Promoter

_EXIT_S = 5.0


class LeftOpen:
    """Ends what a queue began, once the queue is gone or the interpreter exits.

    Args:
        queue: The queue; it is not kept alive.
        promoter: Its promoter.
        feed: Its feed.
    """

    def __init__(self, queue: object, promoter: Promoter, feed: Feed) -> None:
        self._pid = os.getpid()
        self._promoter = promoter
        self._feed = feed
        self._gone = weakref.finalize(queue, self._end_in_background)
        self._gone.atexit = False
        atexit.register(self._end)

    def forget(self) -> bool:
        """Lets go of a queue that is closed in order; returns whether it was open."""
        atexit.unregister(self._end)
        return self._gone.detach() is not None

    def _end_in_background(self) -> None:
        # The garbage collector may be at work on any thread, even one of those that are to end. No daemon
        # thread: the interpreter waits for it. Where it begins no more threads, the hook for its exit is still
        # to come.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._end, name="forebay-left-open").start()

    def _end(self) -> None:
        if os.getpid() != self._pid:  # a forked child has none of the threads, and perhaps their locks
            return
        atexit.unregister(self._end)
        self._gone.detach()
        if self._promoter.stop(_EXIT_S):
            with contextlib.suppress(ForebayError):
                self._feed.close()
