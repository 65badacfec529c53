"""Judges memory: room for the pool, what may take it away, and how fast it is."""

from __future__ import annotations

from typing import Final

from forebay.shm.memory import AT_START
from forebay.wire.limits import MIB

from ..words import size
from .findings import HugePages, Nodes, Room, Swap
from .line import Line, fail, ok, warn

DAEMON_BYTES: Final = 100 * MIB
"""Private memory that a daemon has in use, at most, as measured; the setting max_private_bytes is its bound."""

_GROWN: Final = "lower slots or slot_max_bytes"
_NO_HUGE_PAGES: Final = frozenset({"", "never", "deny"})


def judge_room(found: Room) -> Line:
    """Judges the room on the pool's mount."""
    mount = found.place
    words = (
        f"{size(found.free_bytes)} of {size(found.limit_bytes)} are free on {mount}; the start takes"
        f" {size(found.start_bytes)}, fully grown slots {size(found.grown_bytes)}"
    )
    more = f"enlarge it (mount -o remount,size=... {mount}; in a container, the size of its /dev/shm), or"
    if found.start_bytes > found.free_bytes:
        return fail("pool room", words, f"{more} {AT_START}")
    if found.grown_bytes > found.free_bytes:
        return warn("pool room", f"{words}: what finds no room to grow is refused", f"{more} {_GROWN}")
    return ok("pool room", words)


def judge_group(found: Room | None) -> Line:
    """Judges the memory limit of the control group that shared memory is charged to."""
    if found is None:
        return ok("memory limit", "no limit of a control group is seen from here")
    words = (
        f"{size(found.free_bytes)} of {size(found.limit_bytes)} are free in the control group {found.place};"
        f" the start takes {size(found.start_bytes)}, fully grown slots {size(found.grown_bytes)},"
        f" the daemon up to {size(DAEMON_BYTES)} more"
    )
    more = "raise the memory limit of the daemon's container or unit, or"
    if found.start_bytes > found.free_bytes:
        return fail("memory limit", words, f"{more} {AT_START}")
    if found.start_bytes + DAEMON_BYTES > found.free_bytes:
        return warn("memory limit", f"{words}: the kernel may kill the daemon", f"{more} {AT_START}")
    if found.grown_bytes + DAEMON_BYTES > found.free_bytes:
        return warn("memory limit", f"{words}: what finds no room to grow is refused", f"{more} {_GROWN}")
    return ok("memory limit", words)


def judge_memlock(limit_bytes: int | None) -> Line:
    """Judges how much memory a process may lock.

    Args:
        limit_bytes: Of it; None for no limit.
    """
    allowed = "no limit" if limit_bytes is None else size(limit_bytes)
    words = f"{allowed}; Forebay locks no memory, a device's driver in the trainer may"
    return ok("memlock", words)


def judge_swap(found: Swap) -> Line:
    """Judges whether slots may be written to a disk."""
    if not found.swap_bytes:
        return ok("swap", "none: slots stay in memory")
    words = f"{size(found.swap_bytes)} of swap"
    if found.is_kept_out:
        return ok("swap", f"{words}, and the pool is kept out of it")
    remedy = "MemorySwapMax=0 for the daemon's unit, the option noswap for the mount, or swapoff"
    return warn("swap", f"{words}: where memory is short, slots go to the disk and come back slowly", remedy)


def judge_huge_pages(found: HugePages) -> Line:
    """Judges the size of the pool's pages; small ones work as well, so that nothing of it is a warning."""
    kernel = f"shmem_enabled is {found.kernel}" if found.kernel else "the kernel has none for shared memory"
    words = f"{found.mount} has huge={found.option}, {kernel}"
    # These two hold for all mounts; anything else is for shared memory without one.
    chosen = found.kernel if found.kernel in ("", "deny", "force") else found.option
    if chosen not in _NO_HUGE_PAGES:
        return ok("huge pages", f"{words}: slots have huge pages")
    more = "" if found.kernel in ("", "deny") else f" (mount -o remount,huge=advise {found.mount})"
    return ok("huge pages", f"{words}: slots have small pages, and are filled faster with huge ones{more}")


def judge_nodes(found: Nodes) -> Line:
    """Judges where the slots' pages lie on a host with several memory nodes."""
    if found.count <= 1:
        return ok("memory nodes", "one: every page is as near as the next")
    bind = "start the daemon with numactl --membind=NODE, the accelerator's"
    if not found.pages:
        return ok("memory nodes", f"{found.count}, and no slots yet; to choose theirs, {bind}")
    told = ", ".join(f"{pages} on node {node}" for node, pages in sorted(found.pages.items()))
    words = f"{found.count}; of the slots' pages that were looked at, {told}"
    if len(found.pages) > 1:
        return warn("memory nodes", words, f"{bind}, where the copy to the device is slow")
    return ok("memory nodes", words)
