"""Where this user's daemon is found when nothing else is said, and folders that are nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from forebay.wire import HostError


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


def make_private_folder(path: Path, what: str) -> None:
    """Makes a folder that only this user may enter, or checks that an existing one is this user's.

    Args:
        path: The folder; its parent must exist.
        what: What it is for, for the error.

    Raises:
        HostError: It cannot be made, is a link or a file, or belongs to somebody else.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise HostError(
            f"the {what} folder {path} cannot be made ({error.strerror})",
            remedy="choose one whose parent folder exists and is writable",
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise HostError(
            f"the {what} folder {path} is not a folder of this user",
            got=f"uid {status.st_uid}",
            limit=f"uid {os.geteuid()}",
            remedy="choose another, or run as its owner",
        )
