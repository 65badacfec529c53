"""Real text: the source files of Python's own standard library, cut into trajectories of byte tokens."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.wire import HostError

_FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


class Trajectory(NamedTuple):
    """One trajectory.

    Attributes:
        name: File, and offset of the first byte in it.
        tokens: uint8 [n], the bytes.
    """

    name: str
    tokens: NDArray[np.uint8]


class Corpus:
    """Trajectories one after another, always in the same order; files are read when they are needed.

    A trajectory lies in one file. After the last file comes the first again.

    Args:
        root: Folder with Python files; default the standard library.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(sysconfig.get_path("stdlib"))
        self._files = source_files(self._root)
        self._name = ""
        self._text = np.empty(0, np.uint8)
        self._offset = 0

    def next_trajectory(self, length: int) -> Trajectory:
        """Takes the next `length` bytes that lie in one file.

        Raises:
            HostError: No file is that long.
        """
        rounds = 0
        while self._offset + length > len(self._text):
            if not self._open_next():
                rounds += 1
                if rounds > 1:
                    raise HostError(
                        f"the demo needs Python source files of at least {length} bytes",
                        got=f"none below {self._root}",
                        remedy="use a Python whose standard library is installed as source",
                    )
        start, self._offset = self._offset, self._offset + length
        return Trajectory(f"{self._name}@{start}", self._text[start : self._offset])

    def _open_next(self) -> bool:
        for path in self._files:
            try:
                text = path.read_bytes()
            except OSError:
                continue  # the next file serves as well
            self._name = path.relative_to(self._root).as_posix()
            self._text, self._offset = np.frombuffer(text, np.uint8), 0
            return True
        self._files = source_files(self._root)
        return False


def source_files(root: Path) -> Iterator[Path]:
    """Yields the `.py` files below a folder in a fixed order, without installed packages."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - _FOREIGN_FOLDERS)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))
