"""CPU time of processes, to the nanosecond and without a thread that samples: both matter where little is used."""

from __future__ import annotations

import time
from collections.abc import Mapping


def cpu_clock(pid: int) -> int:
    """Returns the clock that counts a process's CPU time, threads that ended included; for `time.clock_gettime`.

    Source: Linux, include/linux/posix-timers_types.h, MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED.
    """
    return (~pid << 3) | 2


class CpuMeter:
    """CPU time of several processes.

    Args:
        processes: Name and pid of each.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._clocks = {name: cpu_clock(pid) for name, pid in processes.items()}
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        return {name: time.clock_gettime(clock) for name, clock in self._clocks.items()}

    def lap(self) -> dict[str, float]:
        """Returns seconds of CPU of each process since the last lap, or since this was made."""
        before, self._before = self._before, self._now()
        return {name: now - before[name] for name, now in self._before.items()}
