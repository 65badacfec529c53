"""What kind of file system a folder lies on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forebay.wire import HostError

from .memory import mount_point

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})
_MOUNTS: Final = Path("/proc/self/mountinfo")


def check_in_memory(folder: Path) -> None:
    """Checks that files in a folder are shared memory, and not copies of it on a disk.

    On a disk all would work, and every micro-batch would be written to it.

    Args:
        folder: It may be yet to be made.

    Raises:
        HostError: They are not; the message names the mount and its file system.
    """
    mount = mount_point(folder)
    kind = kind_of_mount(mount, _MOUNTS.read_text() if _MOUNTS.exists() else "")
    if kind and kind not in _IN_MEMORY:
        raise HostError(
            f"the pool folder {folder} is not in shared memory: {mount} is of the file system {kind}",
            limit="tmpfs or ramfs",
            remedy="choose a folder in /dev/shm, or mount a tmpfs for it",
        )


def kind_of_mount(mount: Path, mounts: str) -> str:
    """Finds the file system of a mount.

    Args:
        mount: The mount point.
        mounts: Text in the form of /proc/self/mountinfo.

    Returns:
        Its name, empty if it is not there. Of several that lie over each other, the one on top.
    """
    return _last_words(mount, mounts)[0]


def options_of_mount(mount: Path, mounts: str) -> list[str]:
    """Finds the options that a mount's file system has, `huge=advise` or `size=8388608k` say.

    Args:
        mount: The mount point.
        mounts: Text in the form of /proc/self/mountinfo.

    Returns:
        Them, none if it is not there. Of several that lie over each other, those of the one on top.
    """
    return _last_words(mount, mounts)[-1].split(",")


def _last_words(mount: Path, mounts: str) -> list[str]:
    """Returns what stands behind the dash: a file system, its source and its options; an empty text if nothing."""
    words = [""]
    for line in mounts.splitlines():
        place, _, source = line.partition(" - ")
        fields = place.split(" ")
        if len(fields) > 4 and source and _unescaped(fields[4]) == str(mount):
            words = source.split(" ")
    return words


def _unescaped(name: str) -> str:
    # As the kernel writes them. The backslash last: what it leaves is no escape.
    for char in " \t\n\\":
        name = name.replace(f"\\{ord(char):03o}", char)
    return name
