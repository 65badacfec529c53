"""The memory limit of this process's control group: shared memory is charged to whoever touches it first.

A daemon that grows its slots beyond it is not refused, but killed, and its successor with it, as the pages stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 writes a number close to 2^63 where there is no limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest limit that holds for this process.

    Attributes:
        folder: The control group that has it.
        limit_bytes: What it may use at most.
        room_bytes: What is left of that, counting what the kernel would give up for more.
    """

    folder: Path
    limit_bytes: int
    room_bytes: int


def memory_limit(groups: Path = Path("/proc/self/cgroup"), mount: Path = _MOUNT) -> MemoryLimit | None:
    """Looks through this process's control group and those around it, of either version.

    Args:
        groups: What names the groups of a process.
        mount: Where control groups are mounted.

    Returns:
        The one with the least room; None where nothing is limited, or nothing can be read.
    """
    limits = [limit for folder in _folders(groups, mount) if (limit := _limit_of(folder)) is not None]
    return min(limits, key=lambda limit: limit.room_bytes, default=None)


def _folders(groups: Path, mount: Path) -> list[Path]:
    """Returns the group's folder and those around it, up to the mount; in a container that may be all there is."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = mount / "memory" if controllers else mount
        group = root / name.lstrip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return folders


def _limit_of(folder: Path) -> MemoryLimit | None:
    for limit_name, usage_name, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such file; "max"
            limit = int((folder / limit_name).read_text())
            if limit >= _UNLIMITED:
                return None
            usage = int((folder / usage_name).read_text())
            return MemoryLimit(folder, limit, max(0, limit - usage + _reclaimable(folder, prefix)))
    return None


def _reclaimable(folder: Path, prefix: str) -> int:
    """Returns the bytes of cached files; pages of shared memory are not among them."""
    counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(counts.get(prefix + name, 0)) for name in ("inactive_file", "active_file"))
