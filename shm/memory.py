"""Pages of shared memory: reserve them, touch them, count them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import Final

from forebay.wire import MIB, HostError, ShmFullError, printable

from .cgroup import memory_limit

_MADV_POPULATE_WRITE = 23
_TOUCH_STEP_BYTES = 16 * MIB
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

AT_START: Final = "lower slots, slot_initial_bytes or remembered_keys"
"""What helps, beside more memory, where a pool finds no room at its start."""
_GROWING: Final = (
    "send smaller micro-batches, or lower slots, slot_initial_bytes, slot_max_bytes or remembered_keys"
)
"""The same where a slot finds none to grow."""


def reserve_pages(fd: int, nbytes: int, *, path: Path) -> None:
    """Grows a file to at least `nbytes` with real pages behind it.

    `ftruncate` alone would succeed on a full tmpfs, and the first write would then end the process with SIGBUS.

    Args:
        fd: Open for writing.
        nbytes: Size wanted; a larger file stays as it is.
        path: Of the file, for the error.

    Raises:
        ShmFullError: The mount has too little room; the file has its old size again.
    """
    before = os.fstat(fd).st_size
    if nbytes <= before:
        return
    try:
        os.posix_fallocate(fd, before, nbytes - before)
    except OSError as error:
        os.ftruncate(fd, before)
        raise shm_full(path.parent, nbytes - before, str(error.strerror)) from error


def grow_mapped(fd: int, nbytes: int, *, path: Path) -> mmap.mmap:
    """Grows a file to at least `nbytes` and maps all of it, every page reserved, zeroed and entered.

    The first write to a page of a mapping costs up to 20 times a warm copy, also where the page itself is there
    already. Huge pages are asked for; where the mount has them for those who ask (its option `huge=advise`, or
    `/sys/kernel/mm/transparent_hugepage/shmem_enabled` set to `force`), the new part has them.

    Args:
        fd: Open for reading and writing.
        nbytes: Size wanted; a larger file stays as it is.
        path: Of the file, for the error.

    Raises:
        ShmFullError: The mount has too little room; the file has its old size again.
    """
    before = os.fstat(fd).st_size
    size = max(before, nbytes)
    check_room(path.parent, size - before)
    try:
        # Not reserved first: pages that are there before the mapping is advised stay small.
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        touch_pages(memory)
        if reserved_bytes(fd) < size:
            os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.ftruncate(fd, before)
        raise shm_full(path.parent, size - before, str(error.strerror)) from error
    return memory


def reserved_bytes(fd: int) -> int:
    """Returns how much of a file has pages behind it; less than its size means that it has holes."""
    return os.fstat(fd).st_blocks * 512


def check_room(folder: Path, need_bytes: int, *, taken_bytes: int = 0, otherwise: str = _GROWING) -> None:
    """Checks that there is room for so much shared memory, on its mount and in this process's control group.

    Args:
        folder: On the mount.
        need_bytes: All that is needed, which the error names.
        taken_bytes: How much of it is taken already, and would be free again after the error.
        otherwise: What helps beside more memory.

    Raises:
        ShmFullError: There is not; the message names need, free, and the mount or the group.
    """
    more_bytes = need_bytes - taken_bytes
    if more_bytes > free_bytes(folder):
        raise shm_full(folder, need_bytes, otherwise=otherwise)
    group = memory_limit()
    if more_bytes > 0 and group is not None and more_bytes > group.room_bytes:
        raise ShmFullError(
            f"the control group {group.folder} may use {group.limit_bytes} bytes, and shared memory counts",
            got=f"{group.room_bytes} bytes free",
            limit=f"{need_bytes} bytes needed",
            remedy=f"raise the memory limit of the daemon's container or unit, or {otherwise}",
        )


def shm_full(
    folder: Path, need_bytes: int, why: str = "No space left on device", *, otherwise: str = _GROWING
) -> ShmFullError:
    """Makes the error that names need, free and mount point."""
    mount = mount_point(folder)
    return ShmFullError(
        f"shared memory at {mount} is too small ({why})",
        got=f"{free_bytes(folder)} bytes free",
        limit=f"{need_bytes} bytes needed",
        remedy=f"enlarge it (mount -o remount,size=... {mount}; in a container, the size of its /dev/shm), "
        f"or {otherwise}",
    )


def free_bytes(folder: Path) -> int:
    """Returns the bytes that this process may still take on the folder's mount."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def whole_pages(nbytes: int) -> int:
    """Returns what a file of a size takes of its mount, in bytes."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def taken_by(path: Path) -> int:
    """Returns what a file takes of its mount, in bytes; nothing where there is none."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def mount_point(folder: Path) -> Path:
    """Returns the mount that a folder lies on.

    Raises:
        HostError: Its path leads nowhere: links in a circle, say, or a name that is too long.
    """
    try:
        found = folder.resolve()
        while not found.is_mount():
            found = found.parent
    except (OSError, RuntimeError) as error:  # the latter for a circle, before Python 3.13
        raise HostError(f"nobody can tell where {folder} lies: {printable(str(error))}") from error
    return found


def touch_pages(memory: mmap.mmap) -> None:
    """Maps and zeroes the pages of a writable mapping ahead of their use, as far as there is room for them.

    The first touch of a page costs up to 20 times a warm copy. `mmap.madvise` would keep the interpreter lock
    meanwhile; a foreign call gives it up. Kernels before 5.14 do not know the advice: then the pages are
    touched by the first write instead, later and slower. Where there is no room for them, it ends early as well:
    it reserves nothing that can be relied on.

    Args:
        memory: A writable shared mapping.
    """
    anchor = ctypes.c_char.from_buffer(memory)
    try:
        base = ctypes.addressof(anchor)
        for offset in range(0, len(memory), _TOUCH_STEP_BYTES):
            length = min(_TOUCH_STEP_BYTES, len(memory) - offset)
            if _libc.madvise(base + offset, length, _MADV_POPULATE_WRITE) != 0:
                return
    finally:
        del anchor


def keep_freed_memory(nbytes: int) -> None:
    """Has this process's allocator keep what is freed, for what comes next, instead of giving it back at once.

    For a process whose memory for messages comes and goes all the time: where glibc returns it, every chunk is
    received into pages that the kernel has to zero first. Measured: 1.4 GB/s become 3.3. Other allocators do not
    know the call, and are left as they are.

    Args:
        nbytes: At most as much stays at the end of each of the allocator's arenas, and no piece up to half of it
            is mapped alone.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, nbytes // 2)
        mallopt(_M_TRIM_THRESHOLD, nbytes)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.restype = ctypes.c_int
