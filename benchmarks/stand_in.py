"""A stand-in for a device's compute: a timed wait for each micro-batch that is handed to it, one after another."""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import Any, Self


class TimedWork:
    """What a timed wait makes: ready when the wait is over, like a device array.

    Attributes:
        key: The micro-batch's.
        began_at: Monotonic second at which the wait began.
        ready_at: Monotonic second at which it was over.
    """

    nbytes = 0

    def __init__(self, key: str) -> None:
        self.key = key
        self.began_at = 0.0
        self.ready_at = 0.0
        self._ready = threading.Event()

    def begin(self) -> None:
        """Notes that the wait begins."""
        self.began_at = time.monotonic()

    def end(self) -> None:
        """Notes that it is over."""
        self.ready_at = time.monotonic()
        self._ready.set()

    def is_ready(self) -> bool:
        """Tells whether the wait is over."""
        return self._ready.is_set()

    def block_until_ready(self) -> Self:
        """Waits until it is."""
        self._ready.wait()
        return self


class TimedEngine:
    """An engine whose device is a thread that waits; a context manager.

    It keeps a micro-batch's arrays until its wait is over, as a device does.

    Args:
        compute_s: Seconds for each micro-batch.
    """

    def __init__(self, compute_s: float) -> None:
        self._compute_s = compute_s
        self._work: queue.SimpleQueue[tuple[TimedWork, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="timed-device", daemon=True)

    def fwd_bwd(self, batch: Any, *, key: str) -> TimedWork:
        """Hands a micro-batch to the stand-in."""
        work = TimedWork(key)
        self._work.put((work, batch))
        return work

    def update(self) -> TimedWork:
        """Hands an update to the stand-in, which takes as long as a micro-batch."""
        work = TimedWork("update")
        self._work.put((work, None))
        return work

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, batch = item
            work.begin()
            time.sleep(self._compute_s)
            # Its memory is free when its result is there, as on a device.
            del item, batch
            work.end()
