"""A stand-in for a device's compute: a timed wait for each micro-batch that is handed to it, one after another."""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

from forebay.wire import WaitTimeoutError

_WAIT_S: Final = 600.0


class TimedWork:
    """What a timed wait makes: ready when the wait is over, like a device array.

    Args:
        key: The micro-batch's.
        began_at: Monotonic second at which the wait began.
        ready_at: Monotonic second at which it is over; whoever waits hears of it a little later.
    """

    nbytes = 0

    def __init__(self, key: str, began_at: float, ready_at: float) -> None:
        self.key = key
        self.began_at = began_at
        self.ready_at = ready_at
        self._ready = threading.Event()

    def finish(self) -> None:
        """Tells all who wait."""
        self._ready.set()

    def is_ready(self) -> bool:
        """Tells whether the wait is over."""
        return self._ready.is_set()

    def block_until_ready(self) -> Self:
        """Waits until it is."""
        if not self._ready.wait(_WAIT_S):
            raise WaitTimeoutError(f"the stand-in did not finish {self.key!r} within {_WAIT_S:g} s")
        return self


class TimedEngine:
    """An engine whose device is a clock: it begins at once, or when what it had before is over; a context manager.

    A thread tells when a wait is over, and keeps a micro-batch's arrays until then, as a device does.

    Args:
        compute_s: Seconds for each micro-batch.
        update_s: Seconds for each update; default as for a micro-batch.
    """

    def __init__(self, compute_s: float, *, update_s: float | None = None) -> None:
        self._compute_s = compute_s
        self._update_s = compute_s if update_s is None else update_s
        self._free_at = 0.0
        self._work: queue.SimpleQueue[tuple[TimedWork, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="timed-device", daemon=True)

    def fwd_bwd(self, batch: Any, *, key: str = "") -> TimedWork:
        """Hands a micro-batch to the stand-in."""
        return self._hand_over(key, batch, self._compute_s)

    def update(self) -> TimedWork:
        """Hands an update to the stand-in."""
        return self._hand_over("update", None, self._update_s)

    def _hand_over(self, key: str, batch: Any, busy_s: float) -> TimedWork:
        began_at = max(time.monotonic(), self._free_at)
        self._free_at = began_at + busy_s
        work = TimedWork(key, began_at, self._free_at)
        self._work.put((work, batch))
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
            time.sleep(max(0.0, work.ready_at - time.monotonic()))
            # Its memory is free when its result is there, as on a device.
            del item, batch
            work.finish()
