"""The locks of a pool's holders: by them the kernel tells which trainers are alive."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Container
from pathlib import Path

from forebay.wire import HostError, Peer

from .deployment import pool_fault
from .locations import share
from .locks import FileLock, is_held, lock_fault, read_note

HOLDERS_NAME = "holders"


def holder_path(pool: Path, holder: str) -> Path:
    """Returns the lock file of a holder.

    Raises:
        HostError: The name could lead out of the holders' folder.
    """
    if not (0 < len(holder) <= 64 and holder.isascii() and holder.isalnum()):
        raise HostError("not a holder's name", got=holder, limit="1 to 64 letters and digits")
    return pool / HOLDERS_NAME / holder


def holder_fault(pool: Path, holder: str) -> str:
    """Says why a holder's lock cannot stand for it; empty if it can, or if it is gone."""
    try:
        path = holder_path(pool, holder)
    except HostError as error:
        return str(error)
    fault = lock_fault(path)
    return fault and f"the lock {path} stands for no holder: {fault}"


def holder_peer(pool: Path, holder: str) -> Peer | None:
    """Returns who a holder says that it is, in its lock; None if that says nothing, or is gone.

    Raises:
        HostError: The name is none of a holder.
    """
    note = read_note(holder_path(pool, holder))
    return note.peer if note is not None else None


def lock_holder(pool: Path, holder: str, peer: Peer) -> FileLock:
    """Locks a trainer's holder file, which the daemon may look at, also where that is another user.

    Raises:
        HostError: The pool cannot be entered from here.
    """
    path = holder_path(pool, holder)
    try:
        is_shared = path.parent.stat().st_mode & stat.S_IRWXG
        return FileLock(path, peer, mode=0o640 if is_shared else 0o600)
    except HostError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise pool_fault(path, error.__cause__) from error
    except OSError as error:
        raise pool_fault(path, error) from error


def make_holders(pool: Path, gid: int | None) -> None:
    """Makes the folder of a pool's holders, if it is not there yet.

    Args:
        pool: The pool's folder.
        gid: A group whose trainers may lock their holders there too; None for this user alone.

    Raises:
        OSError: It cannot be made.
    """
    holders = pool / HOLDERS_NAME
    holders.mkdir(mode=0o700, exist_ok=True)
    # What a trainer makes in it gets the group; and it can remove only its own.
    share(holders, private=0o700, shared=0o3770, gid=gid)


def remove_holders(pool: Path) -> None:
    """Removes the locks of all holders, and their folder unless a foreign file is in it."""
    holders = pool / HOLDERS_NAME
    with contextlib.suppress(OSError):  # gone already, or a foreign file is in it and stays
        for holder in holders.iterdir():
            if holder.name.isalnum():
                holder.unlink(missing_ok=True)
        holders.rmdir()


def remove_dead_holders(pool: Path, *, spare: Container[str]) -> None:
    """Removes the locks of trainers that died while no daemon watched them, but for some names."""
    with contextlib.suppress(OSError):
        for holder in (pool / HOLDERS_NAME).iterdir():
            with contextlib.suppress(OSError):  # what a member of the group left there stops no daemon
                if holder.name not in spare and not is_held(holder):
                    holder.unlink(missing_ok=True)
