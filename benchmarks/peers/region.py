"""Shared memory without a name: nothing of it is left once no process has it open, however they ended."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import xxhash

from forebay.shm import reserve_pages
from forebay.wire import MIB

_MOUNT: Final = Path("/dev/shm")
_BLOCK_BYTES: Final = 8 * MIB
_IDS: Final = 512


class Region:
    """Pages of shared memory for child processes to map; a context manager.

    Args:
        nbytes: Its size, in bytes.

    Raises:
        ShmFullError: The mount has too little room.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._fd = os.open(_MOUNT, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            reserve_pages(self._fd, nbytes, path=_MOUNT / "benchmark")
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """Where this user's other processes open it while this one has it open."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def fill(self, seed: int = 0) -> None:
        """Writes expert ids, int16 below 512, of which 8 MiB are repeated."""
        block = np.random.default_rng(seed).integers(0, _IDS, _BLOCK_BYTES // 2, np.int16).tobytes()
        self._write(block)

    def clear(self) -> None:
        """Writes zeroes."""
        self._write(bytes(_BLOCK_BYTES))

    def _write(self, block: bytes) -> None:
        at = 0
        while at < self.nbytes:
            at += os.pwrite(self._fd, block[: self.nbytes - at], at)

    def close(self) -> None:
        """Lets it go; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def map_warm(path: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Maps all of a file, every page of it at once, so that no first touch is timed.

    Args:
        path: Of a file in shared memory.

    Returns:
        uint8 [bytes], which keeps the mapping alive.
    """
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return np.frombuffer(memory, np.uint8)


def digest(data: Any) -> str:
    """Returns xxh3-64 of a buffer in hexadecimal."""
    return xxhash.xxh3_64_hexdigest(data)
