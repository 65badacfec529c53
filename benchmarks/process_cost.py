"""What a process costs: its processor time, and the most memory that it held for itself."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PERIOD_S: Final = 0.02
_STOP_S = 10.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_TICKS_AT: Final = slice(11, 13)
"""utime and stime among the fields of /proc/PID/stat that follow the program's name."""


class ProcessCost:
    """Watches another process while it is entered, which it may be any number of times. Source: proc(5).

    Memory is sampled in a thread: RssAnon, so that pages of shared memory do not count. Processor time is the
    kernel's own count, in hundredths of a second; children of the process do not count.

    Args:
        pid: The process.

    Attributes:
        cpu_s: Seconds that it ran, user and system, while it was watched.
        first_mib: MiB that it had for itself at the start.
        peak_mib: Most MiB that were seen.
    """

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu_s_before = 0.0
        self.cpu_s = 0.0
        self.first_mib = self.peak_mib = self._private_mib()

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, name="process-cost", daemon=True)
        self._cpu_s_before = self._run_s()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        self.cpu_s += max(0.0, self._run_s() - self._cpu_s_before)
        self.peak_mib = max(self.peak_mib, self._private_mib())

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self.peak_mib = max(self.peak_mib, self._private_mib())

    def _private_mib(self) -> float:
        lines = self._read("status").splitlines()
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), 0.0)

    def _run_s(self) -> float:
        fields = self._read("stat").rpartition(")")[2].split()
        return sum(map(int, fields[_TICKS_AT])) / _TICKS_PER_S

    def _read(self, name: str) -> str:
        """Reads a file of the process; empty once the process is gone."""
        try:
            return (self._process / name).read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""
