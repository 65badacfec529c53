"""Wrong deployments of daemon and trainer, told apart: what of the pool cannot be used from here, and why."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import stat
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
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return _whose(path, folder.stat())
    return f"{path} is private to another user, and this process runs as uid {os.geteuid()}"


def _whose(path: Path, status: os.stat_result) -> str:
    if status.st_mode & _group_bit(status.st_mode) and status.st_gid not in (os.getegid(), *os.getgroups()):
        owners = f"uid {status.st_uid} and group {_group_name(status.st_gid)}"
        return f"{path} is for {owners}, and this process, uid {os.geteuid()}, is in neither"
    return f"{path} is private to uid {status.st_uid}, and this process runs as uid {os.geteuid()}"


def _group_bit(mode: int) -> int:
    """Returns the bit of a mode that lets the group use it: a folder is gone through, a socket is written."""
    if stat.S_ISDIR(mode):
        return stat.S_IXGRP
    return stat.S_IWGRP if stat.S_ISSOCK(mode) else stat.S_IRGRP


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
