from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.shm import SlotFile, free_bytes, mount_point, reserve_pages, shm_full, touch_pages
from forebay.wire import MIB, HostError, ShmFullError

from .processes import Spawn

PAGE = mmap.PAGESIZE


@pytest.fixture
def fd(request: pytest.FixtureRequest) -> Iterator[int]:
    """A file on the test's small mount, opened for writing."""
    folder: Path = request.getfixturevalue("small_mount")
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


# --- reserving ---


def test_reserved_pages_are_real_and_zero(small_mount: Path, fd: int) -> None:
    before = free_bytes(small_mount)
    reserve_pages(fd, MIB + 1, path=small_mount / "file")
    assert os.fstat(fd).st_size == MIB + 1
    assert free_bytes(small_mount) <= before - MIB
    assert os.pread(fd, MIB + 1, 0) == bytes(MIB + 1)


def test_a_file_that_is_large_enough_stays_as_it_is(small_mount: Path, fd: int) -> None:
    os.write(fd, b"contents")
    for nbytes in (8, 7, 0, -1):
        reserve_pages(fd, nbytes, path=small_mount / "file")
        assert os.pread(fd, 100, 0) == b"contents"


def test_growing_keeps_what_was_there(small_mount: Path, fd: int) -> None:
    os.write(fd, b"contents")
    reserve_pages(fd, 5000, path=small_mount / "file")
    assert os.pread(fd, 5000, 0) == b"contents".ljust(5000, b"\0")


@pytest.mark.parametrize("want", [9 * MIB, 1 << 40, (1 << 62)])
def test_too_small_a_mount_is_refused_by_need_free_and_mount_and_the_file_keeps_its_size(
    small_mount: Path, fd: int, want: int
) -> None:
    path = small_mount / "file"
    reserve_pages(fd, MIB, path=path)
    os.pwrite(fd, b"contents", 0)
    free = free_bytes(small_mount)
    with pytest.raises(ShmFullError) as caught:
        reserve_pages(fd, want, path=path)
    message = str(caught.value)
    assert f"shared memory at {small_mount} is too small" in message
    assert f"{free} bytes free" in message
    assert f"{want - MIB} bytes needed" in message
    assert f"remount,size=... {small_mount}" in message
    # Nothing has moved.
    assert os.fstat(fd).st_size == MIB
    assert free_bytes(small_mount) == free
    assert os.pread(fd, 8, 0) == b"contents"
    reserve_pages(fd, 2 * MIB, path=path)


def test_a_file_that_grew_in_part_has_its_old_size_again(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grow_in_part(fd: int, offset: int, nbytes: int) -> None:
        os.ftruncate(fd, offset + nbytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", grow_in_part)
    with (shm_dir / "file").open("w+b") as file:
        os.write(file.fileno(), b"contents")
        with pytest.raises(ShmFullError, match="No space left on device"):
            reserve_pages(file.fileno(), 5000, path=shm_dir / "file")
        assert os.pread(file.fileno(), 9999, 0) == b"contents"


def test_a_process_that_writes_all_that_it_reserved_never_gets_sigbus(small_mount: Path, spawn: Spawn) -> None:
    child = spawn(
        """
files = []
try:
    for index in range(1000):
        file = SlotFile(Path(sys.argv[1]), index)
        files.append(file)
        file.reserve(700_000)
        file.remap()
except ShmFullError as error:
    for file in files:
        file.remap()
        file.body(0, file.file_bytes - BODY_OFFSET)[:] = b"x" * (file.file_bytes - BODY_OFFSET)
    say(len(files), error)
""",
        small_mount,
    )
    count, words = child.hear().split(" ", 1)
    assert child.finish() == 0
    assert 8 <= int(count) <= 12
    assert f"shared memory at {small_mount} is too small (No space left on device)" in words


def test_a_slot_that_cannot_grow_is_what_it_was(small_mount: Path) -> None:
    file = SlotFile(small_mount, 0)
    file.reserve(MIB)
    file.remap()
    file.body(0, 5)[:] = b"hello"
    with pytest.raises(ShmFullError):
        file.reserve(9 * MIB)
    file.remap()
    assert file.file_bytes == MIB
    assert bytes(file.body(0, 5)) == b"hello"
    file.close()


def test_a_slot_without_room_for_its_first_page_is_refused(small_mount: Path) -> None:
    filler = SlotFile(small_mount, 0)
    filler.reserve(free_bytes(small_mount) + filler.file_bytes)
    assert free_bytes(small_mount) == 0
    with pytest.raises(ShmFullError, match="got 0 bytes free; limit 4096 bytes needed"):
        SlotFile(small_mount, 1)
    filler.close()


def test_what_is_full_can_be_told_without_failing_first(small_mount: Path) -> None:
    error = shm_full(small_mount, 12345)
    assert isinstance(error, HostError)
    assert re.search(r"got \d+ bytes free; limit 12345 bytes needed; enlarge it", str(error))


# --- mounts ---


def test_the_mount_of_a_folder_is_found_through_folders_and_links(small_mount: Path, tmp_path: Path) -> None:
    inner = small_mount / "one" / "two"
    inner.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(inner)
    for folder in (small_mount, inner, link):
        assert mount_point(folder) == small_mount
    assert mount_point(tmp_path) != small_mount
    assert mount_point(Path("/")) == Path("/")
    assert mount_point(Path("/dev/shm")) == Path("/dev/shm")


def test_a_path_that_leads_nowhere_is_told_by_name(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    for folder in (circle, tmp_path / ("x" * 300)):
        with pytest.raises(HostError, match="nobody can tell where"):
            mount_point(folder)


# --- touching ---


def resident_bytes(memory: mmap.mmap) -> int:
    anchor = ctypes.c_char.from_buffer(memory)
    start = f"{ctypes.addressof(anchor):x}-"
    del anchor
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(start):
            rss = next(inner for inner in lines if inner.startswith("Rss:"))
            return int(rss.split()[1]) * 1024
    raise AssertionError("the mapping is not in smaps")


@pytest.fixture
def shared(shm_dir: Path) -> Iterator[mmap.mmap]:
    """A fresh mapping of 40 reserved pages."""
    with (shm_dir / "pages").open("w+b") as file:
        reserve_pages(file.fileno(), 40 * PAGE, path=shm_dir / "pages")
        memory = mmap.mmap(file.fileno(), 40 * PAGE)
    yield memory
    memory.close()  # raises if touching had kept a pointer into it


SIZE = 40 * PAGE
needs_populate = pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (5, 14),
    reason="the kernel does not know MADV_POPULATE_WRITE",
)


@needs_populate
def test_touching_maps_every_page(shared: mmap.mmap) -> None:
    assert resident_bytes(shared) == 0
    touch_pages(shared)
    assert resident_bytes(shared) >= SIZE


def test_touching_changes_no_contents(shared: mmap.mmap) -> None:
    shared[:] = bytes(range(256)) * (SIZE // 256)
    touch_pages(shared)
    assert shared[:] == bytes(range(256)) * (SIZE // 256)


@needs_populate
def test_ranges_longer_than_a_step_are_touched_whole(shm_dir: Path) -> None:
    nbytes = 33 * MIB
    with (shm_dir / "pages").open("w+b") as file:
        reserve_pages(file.fileno(), nbytes, path=shm_dir / "pages")
        with mmap.mmap(file.fileno(), nbytes) as memory:
            touch_pages(memory)
            assert resident_bytes(memory) == nbytes
