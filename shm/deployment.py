"""Wrong deployments of daemon and trainer, told apart: what of the pool cannot be used from here, and why."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from forebay.wire import HostError

SHARE_SHM = "have daemon and trainer share one /dev/shm; containers: one volume in memory, or --ipc=container:NAME"
SHARE_USER = "run both under one user, or in the group of the setting group"


def pool_fault(path: Path, error: Exception) -> HostError:
    """Makes the error that tells why something in a living daemon's pool cannot be used from this process.

    Args:
        path: What was tried.
        error: What came of it.
    """
    if isinstance(error, FileNotFoundError):
        words = f"there is no {path} here, though its daemon runs: this process sees another /dev/shm"
        return HostError(words, remedy=SHARE_SHM)
    if isinstance(error, PermissionError):
        return HostError(private_words(path), remedy=SHARE_USER)
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return HostError(
            f"{path} is mounted read-only here, and a trainer keeps a lock in the pool",
            remedy="mount the pool's /dev/shm for writing; slots are mapped read-only all the same",
        )
    return HostError(f"the daemon's pool cannot be used from here: {path} ({error})", remedy=SHARE_SHM)


def private_words(path: Path) -> str:
    """Says whose a path is that this process may not use, as far as that can be seen."""
    owner = "another user"
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            owner = f"uid {folder.stat().st_uid}"
            break
    return f"{path} is private to {owner}, and this process runs as uid {os.geteuid()}"
