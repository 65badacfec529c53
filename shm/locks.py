"""Locks that the kernel releases when their holder dies, whatever pid namespace it lived in.

flock, never pids: a pid means nothing in another container and is reused. A child made by fork shares its parent's
lock; programs that are started anew do not, since the files are opened close-on-exec.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from pathlib import Path

import msgspec

from forebay.wire import HeldError, HostError, Peer

_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a lock is opened that another user may have made: a link is not followed, a pipe is not waited for."""

_MAX_NOTE_BYTES = 4096
"""What is read of a note, which another user may have written too."""


def this_peer(name: str) -> Peer:
    """Describes this process to others."""
    return Peer(name=name, pid=os.getpid(), host=socket.gethostname())


class LockNote(msgspec.Struct, frozen=True):
    """What a holder writes into its lock file, for people to read.

    Attributes:
        peer: Who holds it.
        since: Wall-clock time at which it was taken, ISO 8601.
    """

    peer: Peer
    since: str


class FileLock:
    """An exclusive lock on a file, held until `close` or death.

    Args:
        path: The file; created if missing.
        peer: Written into it for whoever is refused.
        mode: Who may look at it. Whoever may open it may also lock it once it is free.

    Raises:
        HeldError: A live process holds it; the message names that process.
        HostError: The file cannot be opened.
    """

    def __init__(self, path: Path, peer: Peer, *, mode: int = 0o600) -> None:
        self.path = path
        self._fd = _lock_present_file(path)
        with contextlib.suppress(OSError):  # a file of another user's that this process may lock
            os.fchmod(self._fd, mode)
        note = LockNote(peer, time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        # On a full mount there is no room for the note; the lock holds without it.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, msgspec.json.encode(note), 0)

    def is_in_place(self) -> bool:
        """Tells whether the path still leads to the locked file, and nobody removed it."""
        return self._fd >= 0 and _is_same_file(self._fd, self.path)

    def close(self, *, remove: bool = False) -> None:
        """Releases the lock; a second call does nothing."""
        if self._fd < 0:
            return
        if remove and self.is_in_place():
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1


def wait_until_free(path: Path) -> None:
    """Blocks until nobody holds the lock; returns at once if the file is gone, or something else took its place.

    There is no way to interrupt it: meant for a thread of its own, which the process's end may abandon.

    Raises:
        OSError: It cannot be looked at now, which says nothing about who holds it.
    """
    fd = _open_to_look(path)
    if fd is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Tells whether a live process holds the lock now; so it is taken for one that cannot be looked at."""
    try:
        fd = _open_to_look(path)
    except PermissionError:  # its holder is just about to open it to the group
        return True
    if fd is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def lock_fault(path: Path) -> str:
    """Says why a file cannot stand for whoever should hold it; empty if it can, or if it is gone."""
    try:
        fd = _open_to_look(path)
    except PermissionError:
        return "this user may not read it"
    except OSError:  # too many open files, say: no fault of the file's
        return ""
    if fd is not None:
        os.close(fd)
        return ""
    return "it is no regular file" if os.path.lexists(path) else ""


def read_note(path: Path) -> LockNote | None:
    """Returns what the holder wrote; None if it has not yet, or if that cannot be read or is no note."""
    try:
        fd = _open_to_look(path)
        if fd is None:
            return None
        with open(fd, "rb") as file:
            return msgspec.json.decode(file.read(_MAX_NOTE_BYTES), type=LockNote)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def _open_to_look(path: Path) -> int | None:
    """Opens a lock that another user may have made; None if there is none: only a regular file is one."""
    try:
        fd = os.open(path, _LOOK)
    except OSError:
        if _is_regular(path):
            raise
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _lock_present_file(path: Path) -> int:
    # The file may be removed between opening and locking; then the lock guards nothing and is taken anew.
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostError(
                f"lock file {path} cannot be opened ({error.strerror})",
                remedy="remove it, or run as its owner",
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise _held(path) from None
        if _is_same_file(fd, path):
            return fd
        os.close(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _held(path: Path) -> HeldError:
    note = read_note(path)
    holder = "a process that has not named itself yet"
    if note is not None:
        holder = f"{note.peer} since {note.since}"
    return HeldError(f"{path} is held by {holder}", remedy="stop it first, or choose another path")
