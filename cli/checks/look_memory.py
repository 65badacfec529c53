"""Looks at the memory of the host: mounts, control groups, pages."""

from __future__ import annotations

import mmap
import os
import re
import resource
from pathlib import Path
from typing import Final

from forebay.shm.cgroup import memory_limit
from forebay.shm.memory import free_bytes, mount_point
from forebay.shm.mounts import options_of_mount
from forebay.shm.pool import LOCK_NAME, pool_need
from forebay.shm.slot_file import slot_path

from .case import Case
from .findings import HugePages, Nodes, Room, Swap

_LOOKED_AT_PAGES: Final = 64
_SHMEM_ENABLED: Final = "sys/kernel/mm/transparent_hugepage/shmem_enabled"


def needs(case: Case) -> tuple[int, int]:
    """Returns the bytes that the pool takes beside what it has: at the start, and with fully grown slots."""
    settings = case.settings
    lock = 0 if (case.pool / LOCK_NAME).exists() else mmap.PAGESIZE
    start, grown = (
        pool_need(case.pool, settings.slots, slot_bytes, settings.remembered_keys)
        for slot_bytes in (settings.slot_initial_bytes, settings.slot_max_bytes)
    )
    return start + lock, grown + lock


def look_at_room(case: Case) -> Room:
    """Looks at the mount of the pool."""
    mount = mount_point(case.pool)
    stat = os.statvfs(mount)
    return Room(mount, stat.f_blocks * stat.f_frsize, free_bytes(mount), *needs(case))


def look_at_group(case: Case) -> Room | None:
    """Looks for the control group with the least room; None where nothing is limited."""
    limit = memory_limit(case.root / "proc/self/cgroup", case.root / "sys/fs/cgroup")
    if limit is None:
        return None
    return Room(limit.folder, limit.limit_bytes, limit.room_bytes, *needs(case))


def memlock_bytes() -> int | None:
    """Returns how much a process may lock; None for any."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if hard == resource.RLIM_INFINITY else hard


def look_at_swap(case: Case) -> Swap:
    """Looks for swap, and for what keeps the pool out of it."""
    swaps = [line.split() for line in case.text("proc/swaps").splitlines()[1:]]
    is_kept_out = "noswap" in _options(case) or _group_has_none(case)
    return Swap(sum(int(fields[2]) << 10 for fields in swaps), is_kept_out)


def _group_has_none(case: Case) -> bool:
    """Whether a control group of the second version, this process's or one around it, may use no swap."""
    name = re.search(r"^0::/(.*)$", case.text("proc/self/cgroup"), re.MULTILINE)
    if name is None:
        return False
    folder = Path(name[1])
    return any(
        case.text(f"sys/fs/cgroup/{group}/memory.swap.max").strip() == "0" for group in (folder, *folder.parents)
    )


def look_at_huge_pages(case: Case) -> HugePages:
    """Looks at the mount's option, and at the kernel's choice for all mounts."""
    option = next((text for text in _options(case) if text.startswith("huge=")), "huge=never")
    chosen = re.search(r"\[(\w+)\]", case.text(_SHMEM_ENABLED))
    return HugePages(mount_point(case.pool), option.removeprefix("huge="), chosen[1] if chosen else "")


def _options(case: Case) -> list[str]:
    return options_of_mount(mount_point(case.pool), case.text("proc/self/mountinfo"))


def look_at_nodes(case: Case) -> Nodes:
    """Counts the memory nodes; where there are several, looks at some pages of the first slot."""
    count = len(list((case.root / "sys/devices/system/node").glob("node[0-9]*")))
    slot = slot_path(case.pool, 0)
    if count <= 1 or not os.access(slot, os.R_OK):
        return Nodes(max(1, count), {})
    return Nodes(count, pages_by_node(slot))


def pages_by_node(path: Path) -> dict[int, int]:
    """Returns node -> pages, of some pages of a file in shared memory that has no holes.

    The kernel tells it of pages that this process has touched. Source: numa_maps, proc(5).
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        step = max(mmap.PAGESIZE, len(memory) // _LOOKED_AT_PAGES // mmap.PAGESIZE * mmap.PAGESIZE)
        for offset in range(0, len(memory), step):
            memory[offset]
        return nodes_in(Path("/proc/self/numa_maps").read_text(), path)


def nodes_in(numa_maps: str, path: Path) -> dict[int, int]:
    """Reads node -> pages of a file out of the text of numa_maps."""
    lines = [line for line in numa_maps.splitlines() if f" file={path} " in f"{line} "]
    found: dict[int, int] = {}
    for node, pages in re.findall(r" N(\d+)=(\d+)", "\n".join(lines)):
        found[int(node)] = found.get(int(node), 0) + int(pages)
    return found


def free_in(room: Room, group: Room | None) -> int:
    """Returns the bytes that are free on the mount and in the control group."""
    return min(room.free_bytes, group.free_bytes) if group is not None else room.free_bytes
