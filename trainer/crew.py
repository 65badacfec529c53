"""Threads that are made when there is work for them, and never keep a process from ending."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from forebay.sockets import tell
from forebay.wire import Event, HostError

log = logging.getLogger("forebay.trainer")

_EXIT_S: Final = 30.0
_EXIT_HANGING: Final = 1


class Crew:
    """Runs functions on up to so many threads.

    Unlike those of `concurrent.futures`, its threads are daemons: a step that hangs on the device must not keep a
    process that was told to end from ending.

    Args:
        name: Of its threads.
        size: How many there may be.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Crew({self._name!r}, {len(self._threads)} of {self._size} threads, {self._idle} idle)"

    def submit(self, function: Callable[[], None]) -> None:
        """Has a function run, which must not raise, as soon as a thread is free.

        Raises:
            HostError: A thread is needed, and none can be started.
        """
        with self._lock:
            if self._idle <= 0 and len(self._threads) < self._size:
                self._begin_thread()
            else:
                self._idle -= 1
        self._work.put(function)

    def _begin_thread(self) -> None:
        name = f"forebay-{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise HostError(
                f"the worker's thread {name} cannot be started: {error}",
                remedy="see the limits on threads (ulimit -u) and on memory",
            ) from error
        if not self._threads:
            atexit.register(self._end_with_interpreter)
        self._threads.append(thread)

    def _run(self) -> None:
        while (function := self._work.get()) is not None:
            try:
                function()
            finally:
                # What it ran with must not live on in this frame until the next work comes.
                del function
                with self._lock:
                    self._idle += 1

    def close(self, timeout_s: float) -> bool:
        """Ends the threads after the work that was given to them; returns whether they ended in time."""
        for _ in self._threads:
            self._work.put(None)
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        atexit.unregister(self._end_with_interpreter)
        return True

    def _end_with_interpreter(self) -> None:
        """Waits for what is inside of JAX: a thread that is killed there would abort the process."""
        if os.getpid() != self._pid or self.close(_EXIT_S):
            return
        tell(log, logging.ERROR, Event.WORKER_HANGS, crew=repr(self), after_s=_EXIT_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_EXIT_HANGING)
