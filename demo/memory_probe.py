"""Watching another process's private memory."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PERIOD_S: Final = 0.02
_STOP_S = 10.0


class MemoryProbe:
    """Samples a process's anonymous memory in a thread; a context manager.

    Pages of shared memory do not count: what is left is what the process holds for itself.

    Args:
        pid: The process.

    Attributes:
        first_mib: At the start.
        peak_mib: Most seen so far.
    """

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.first_mib = self.peak_mib = self._read()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self.peak_mib = max(self.peak_mib, self._read())

    def _read(self) -> float:
        """Reads RssAnon; 0 once the process is gone."""
        try:
            lines = self._status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), 0.0)
