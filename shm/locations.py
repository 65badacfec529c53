"""Where this user's daemon is found when nothing else is said, and folders that are nobody else's."""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

from forebay.wire import HostError, SettingError

_MAX_GID = 2**32 - 2


def runtime_folder() -> Path:
    """Returns the folder of this user's sockets: under XDG_RUNTIME_DIR, or in /tmp where that is unset."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "forebay" if base else Path(f"/tmp/forebay-{os.geteuid()}")


def default_endpoint(name: str) -> str:
    """Returns the endpoint of a socket: a daemon's control, data or trainer, or worker or worker_data.

    Args:
        name: Which socket; FOREBAY_CONTROL_ENDPOINT and so on name another address.
    """
    return os.environ.get(f"FOREBAY_{name.upper()}_ENDPOINT") or f"ipc://{runtime_folder() / name}.sock"


def default_pool() -> Path:
    """Returns this user's default pool."""
    return Path(f"/dev/shm/forebay-{os.geteuid()}-default")


def group_id(group: str) -> int | None:
    """Returns the number of the setting `group`, a name or a number; None where that is empty.

    Raises:
        SettingError: This host has no such group.
    """
    if not group:
        return None
    if group.isdecimal() and int(group) <= _MAX_GID:
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SettingError("setting group", got=group, limit="a group of this host, by name or number") from None


def share(path: Path, *, private: int, shared: int, gid: int | None, fd: int | None = None) -> None:
    """Gives a file or folder of this user's the mode that it has to have, and the group if there is one.

    Args:
        path: It.
        private: Mode if it is this user's alone.
        shared: Mode if the group may use it too.
        gid: The group, or None.
        fd: Its descriptor, if it is open.

    Raises:
        HostError: This process may not do that.
    """
    target = path if fd is None else fd
    try:
        if gid is not None:
            os.chown(target, -1, gid)
        # Last: a change of owner takes some bits away.
        os.chmod(target, private if gid is None else shared)
    except OSError as error:
        raise HostError(
            f"{path} cannot be made private to this user{'' if gid is None else f' and group {gid}'}"
            f" ({error.strerror})",
            remedy="run as its owner, and as a member of the setting group's group",
        ) from error


def make_private_folder(path: Path, what: str, gid: int | None = None) -> None:
    """Makes a folder that only this user may enter, or a group too, or makes this user's existing one so.

    Args:
        path: The folder; its parent must exist.
        what: What it is for, for the error.
        gid: A group that may go through it, but not list it; None for nobody.

    Raises:
        HostError: It cannot be made, is a link or a file, belongs to somebody else, or is a folder that all share.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        check_own_folder(path, what)
    except OSError as error:
        raise HostError(
            f"the {what} folder {path} cannot be made ({error.strerror})",
            remedy="choose one whose parent folder exists and is writable",
        ) from error
    share(path, private=0o700, shared=0o710, gid=gid)


def check_own_folder(path: Path, what: str) -> None:
    """Checks that what is at a path can be made a folder that only this user may enter.

    Args:
        path: It.
        what: What it is for, for the error.

    Raises:
        HostError: It is a link or a file, belongs to somebody else, or is a folder that all share.
        OSError: It cannot be looked at.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise HostError(
            f"the {what} folder {path} is not a folder of this user",
            got=f"uid {status.st_uid}",
            limit=f"uid {os.geteuid()}",
            remedy="choose another, or run as its owner",
        )
    if status.st_mode & stat.S_ISVTX:
        raise HostError(
            f"the {what} folder {path} is shared by many users",
            got=oct(stat.S_IMODE(status.st_mode)),
            limit="a folder of its own",
            remedy="choose a folder in it",
        )
