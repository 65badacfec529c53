"""Growing a file together with its mapping: every page is there at once, and a full mount changes nothing."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.shm import BODY_OFFSET, SlotFile, free_bytes, grow_mapped, keep_freed_memory, memory, slot_path
from forebay.wire import MIB, ShmFullError

from .processes import Spawn, fill_up
from .test_memory import needs_populate, resident_bytes

PAGE = mmap.PAGESIZE

GROW = """
import threading
file = SlotFile(Path(sys.argv[1]), 0)
threading.Thread(target=file.reserve, args=(int(sys.argv[2]),)).start()
say("it grows")
"""


@contextlib.contextmanager
def opened(path: Path, contents: bytes = b"") -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, contents)
        yield fd
    finally:
        os.close(fd)


# --- what there is room for ---


@needs_populate
@pytest.mark.parametrize("before", [0, 1, PAGE, 3 * PAGE + 1])
@pytest.mark.parametrize("nbytes", [1, PAGE, 5 * PAGE + 7, 33 * MIB])
def test_every_page_old_and_new_is_in_the_mapping_at_once(shm_dir: Path, before: int, nbytes: int) -> None:
    with opened(shm_dir / "file", b"x" * before) as fd, grow_mapped(fd, nbytes, path=shm_dir / "file") as mapped:
        assert len(mapped) == os.fstat(fd).st_size == max(before, nbytes)
        assert resident_bytes(mapped) == -(-len(mapped) // PAGE) * PAGE


@pytest.mark.parametrize("nbytes", [1, 8, 9, PAGE, 5 * PAGE + 7, MIB])
def test_what_was_there_stays_and_all_else_is_zero(shm_dir: Path, nbytes: int) -> None:
    with (
        opened(shm_dir / "file", b"contents") as fd,
        grow_mapped(fd, nbytes, path=shm_dir / "file") as mapped,
    ):
        assert mapped[:] == b"contents".ljust(nbytes, b"\0")
        assert os.pread(fd, 2 * MIB, 0) == mapped[:]


def test_what_is_written_to_the_mapping_is_in_the_file_and_in_every_later_mapping(shm_dir: Path) -> None:
    with (
        opened(shm_dir / "file") as fd,
        grow_mapped(fd, PAGE, path=shm_dir / "file") as first,
        grow_mapped(fd, 10 * PAGE, path=shm_dir / "file") as second,
    ):
        second[PAGE - 1 : PAGE + 1] = b"ab"
        first[:5] = b"hello"
        assert (first[PAGE - 1 :], second[:5]) == (b"a", b"hello")
        assert os.pread(fd, 2, PAGE - 1) == b"ab"


def test_a_file_that_is_large_enough_keeps_its_size(shm_dir: Path) -> None:
    with opened(shm_dir / "file", b"x" * 5000) as fd:
        for nbytes in (5000, 4999, 1, 0, -1):
            with grow_mapped(fd, nbytes, path=shm_dir / "file") as mapped:
                assert mapped[:] == b"x" * 5000
        assert os.fstat(fd).st_size == 5000


def test_its_pages_are_taken_from_the_mount(small_mount: Path) -> None:
    before = free_bytes(small_mount)
    with opened(small_mount / "file") as fd, grow_mapped(fd, MIB + 1, path=small_mount / "file"):
        assert before - free_bytes(small_mount) == MIB + PAGE


# --- what there is no room for ---


def assert_refused(fd: int, path: Path, want: int) -> None:
    size, free = os.fstat(fd).st_size, free_bytes(path.parent)
    with pytest.raises(ShmFullError) as caught:
        grow_mapped(fd, want, path=path)
    assert f"shared memory at {path.parent} is too small" in str(caught.value)
    assert f"limit {want - size} bytes needed" in str(caught.value)
    assert (os.fstat(fd).st_size, free_bytes(path.parent)) == (size, free)
    assert os.pread(fd, 8, 0) == b"contents"


@pytest.mark.parametrize("want", [8 * MIB + 1, 9 * MIB, 1 << 40, 1 << 62])
def test_too_small_a_mount_is_refused_and_nothing_has_moved(small_mount: Path, want: int) -> None:
    path = small_mount / "file"
    with opened(path, b"contents") as fd:
        for _ in range(3):
            assert_refused(fd, path, want)
        grow_mapped(fd, 7 * MIB, path=path).close()


def test_a_mount_that_others_filled_meanwhile_is_refused_and_nothing_has_moved(
    small_mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_mount / "file"
    with opened(path, b"contents") as fd:
        # There seemed to be room: pages are taken until there are no more.
        with monkeypatch.context() as patch:
            patch.setattr(memory, "free_bytes", lambda _: 1 << 40)
            with pytest.raises(ShmFullError, match="too small"):
                grow_mapped(fd, 9 * MIB, path=path)
        assert (os.fstat(fd).st_size, os.pread(fd, 9, 0)) == (8, b"contents")
        assert free_bytes(small_mount) >= 8 * MIB - 2 * PAGE
        grow_mapped(fd, 7 * MIB, path=path).close()


def test_a_file_that_cannot_be_mapped_has_its_old_size_again(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with opened(shm_dir / "file", b"contents") as fd:
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", no_memory)
            with pytest.raises(ShmFullError, match="Cannot allocate memory"):
                grow_mapped(fd, MIB, path=shm_dir / "file")
        assert os.pread(fd, 9, 0) == b"contents"


def test_a_file_with_holes_has_all_its_pages_afterwards_or_is_refused(small_mount: Path) -> None:
    path = small_mount / "file"
    with opened(path, b"contents") as fd:
        os.ftruncate(fd, 6 * MIB)
        fill_up(small_mount, 4 * MIB)
        with pytest.raises(ShmFullError, match="No space left"):
            grow_mapped(fd, 6 * MIB, path=path)
        assert os.pread(fd, 8, 0) == b"contents"
        (small_mount / "filler").unlink()
        with grow_mapped(fd, 6 * MIB, path=path):
            assert os.fstat(fd).st_blocks * 512 == 6 * MIB


# --- slots ---


def test_a_growth_that_was_cut_short_is_taken_back_by_the_next_daemon(small_mount: Path) -> None:
    slot_with(small_mount, MIB).close()
    # As a kill in the middle leaves it: the size is there, the pages are not.
    os.truncate(slot_path(small_mount, 0), 6 * MIB)
    fill_up(small_mount, 4096)
    file = SlotFile(small_mount, 0)
    assert file.file_bytes == os.stat(slot_path(small_mount, 0)).st_size == MIB
    file.body(0, MIB - BODY_OFFSET)[:] = bytes(MIB - BODY_OFFSET)
    file.close()


def test_a_daemon_killed_while_a_slot_grows_leaves_one_that_has_all_its_pages(shm_dir: Path, spawn: Spawn) -> None:
    nbytes = 512 * MIB
    for _ in range(3):
        child = spawn(GROW, shm_dir, nbytes)
        child.hear()
        child.kill()
        file = SlotFile(shm_dir, 0)
        assert os.stat(slot_path(shm_dir, 0)).st_blocks * 512 >= file.file_bytes
        file.close()
        slot_path(shm_dir, 0).unlink()


def slot_with(pool: Path, file_bytes: int) -> SlotFile:
    file = SlotFile(pool, 0)
    file.reserve(file_bytes)
    file.remap()
    return file


def test_views_of_a_smaller_mapping_stay_valid_and_show_the_same_bytes(shm_dir: Path) -> None:
    file = slot_with(shm_dir, 2 * PAGE)
    old = file.body(0, 5)
    old[:] = b"hello"
    file.reserve(MIB)
    assert file.file_bytes == 2 * PAGE, "the mapping in use is not replaced beside the loop"
    assert bytes(old) == b"hello"
    file.remap()
    assert file.file_bytes == MIB
    new = file.body(0, 5)
    assert bytes(new) == b"hello"
    old[:] = b"HELLO"
    assert bytes(new) == b"HELLO"
    file.close()
    assert bytes(old) == b"HELLO"


def test_to_remap_again_changes_nothing(shm_dir: Path) -> None:
    file = slot_with(shm_dir, MIB)
    file.body(0, 5)[:] = b"hello"
    for _ in range(2):
        file.remap()
        assert (file.file_bytes, bytes(file.body(0, 5))) == (MIB, b"hello")
    file.close()


def test_a_slot_that_cannot_grow_keeps_its_mapping_and_its_views(small_mount: Path) -> None:
    file = slot_with(small_mount, MIB)
    view = file.body(0, MIB - BODY_OFFSET)
    view[-5:] = b"hello"
    free = free_bytes(small_mount)
    with pytest.raises(ShmFullError):
        file.reserve(9 * MIB)
    file.remap()
    assert (file.file_bytes, free_bytes(small_mount)) == (MIB, free)
    view[:5] = b"HELLO"
    assert bytes(file.body(0, 5)) == b"HELLO"
    assert bytes(view[-5:]) == b"hello"
    file.close()


# --- the allocator ---

WORK = """
import threading
def work():
    kept = []
    digest = hashlib.sha256()
    for number in range(60):
        data = bytes([number % 251]) * (number * 7919 % 3_000_000)
        kept = [*kept[-7:], bytearray(data)]
        digest.update(kept[number % len(kept)])
    return digest.hexdigest()
def both():
    digests = []
    threads = [threading.Thread(target=lambda: digests.append(work())) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return {*digests, work()}
"""


def test_memory_that_is_kept_holds_the_same(spawn: Spawn) -> None:
    child = spawn(WORK + "say(*both())\nkeep_freed_memory(64 << 20)\nkeep_freed_memory(1 << 20)\nsay(*both())")
    without, kept = child.hear(), child.hear()
    assert child.finish() == 0
    assert without == kept
    assert len(kept.split()) == 1


def test_another_allocator_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_libc", object())
    keep_freed_memory(1 << 20)
