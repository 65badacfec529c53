"""Where no pool can be: what lies there is left alone, and of a mount without room nothing is kept."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from forebay.shm import (
    HOLDERS_NAME,
    LOCK_NAME,
    Pool,
    free_bytes,
    holder_fault,
    holder_path,
    is_held,
    lock_holder,
    slot_path,
)
from forebay.wire import GIB, MIB, HostError, ShmFullError

from .pool_makers import fill, make_pool, snapshot, states
from .processes import fill_up, this_peer


@pytest.fixture
def path(shm_dir: Path) -> Path:
    return shm_dir / "pool"


# --- what cannot be a pool ---


def test_a_file_or_a_link_in_the_pools_place_is_refused_and_left_alone(shm_dir: Path) -> None:
    folder = shm_dir / "folder"
    folder.mkdir()
    (folder / "file").write_text("precious")
    (shm_dir / "to-folder").symlink_to(folder)
    (shm_dir / "to-nothing").symlink_to(shm_dir / "nothing")
    before = snapshot(shm_dir)
    for path in ("to-folder", "to-nothing", "folder/file", "missing/pool", "folder/file/pool"):
        with pytest.raises(HostError, match=f"the pool folder {shm_dir / path} "):
            make_pool(shm_dir / path)
    assert snapshot(shm_dir) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_another_users_folder_is_refused_and_left_alone(path: Path, shm_dir: Path) -> None:
    path.mkdir(mode=0o777)
    os.chown(path, 65534, 65534)
    before = snapshot(shm_dir)
    with pytest.raises(HostError, match="not a folder of this user; got uid 65534; limit uid 0"):
        make_pool(path)
    assert snapshot(shm_dir) == before


@pytest.mark.parametrize("name", ["slot-0001", LOCK_NAME])
def test_links_inside_the_pool_are_not_followed(path: Path, shm_dir: Path, name: str) -> None:
    victim = shm_dir / "victim"
    victim.write_text("precious")
    path.mkdir(mode=0o700)
    (path / name).symlink_to(victim)
    with pytest.raises(HostError, match=f"{path / name} cannot be opened"):
        make_pool(path)
    assert victim.read_text() == "precious"
    assert (path / name).is_symlink()
    assert not slot_path(path, 0).exists()


def test_a_file_in_the_holders_place_is_refused(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / HOLDERS_NAME).write_text("precious")
    with pytest.raises(HostError, match="cannot be described"):
        make_pool(path)
    assert not is_held(path / LOCK_NAME)


@pytest.mark.parametrize(
    "holder", ["", "a" * 65, "../lock", "a/b", "a.b", "a b", "é", "\0", ".", "a\n", "\u0663"], ids=ascii
)
def test_a_holders_name_cannot_lead_out_of_its_folder(path: Path, holder: str) -> None:
    with pytest.raises(HostError, match="not a holder's name"):
        holder_path(path, holder)


def test_a_holders_lock_lies_in_the_pool(path: Path) -> None:
    assert holder_path(path, "a" * 64) == path / "holders" / ("a" * 64)


def test_only_a_regular_file_that_can_be_read_stands_for_a_holder(path: Path) -> None:
    pool = make_pool(path)
    lock_holder(path, "good", this_peer()).close()
    holder_path(path, "folder").mkdir()
    holder_path(path, "link").symlink_to(holder_path(path, "good"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(holder_path(path, "socket")))
    assert (holder_fault(path, "good"), holder_fault(path, "gone")) == ("", "")
    for name in ("folder", "link", "socket"):
        fault = holder_fault(path, name)
        assert str(holder_path(path, name)) in fault
        assert "no regular file" in fault
    pool.close()


# --- too little room ---


@pytest.mark.parametrize("slot_bytes", [3 * MIB, GIB, 1 << 50])
def test_too_small_a_mount_is_refused_by_need_free_and_mount_and_nothing_is_left(
    small_mount: Path, slot_bytes: int
) -> None:
    free = free_bytes(small_mount)
    with pytest.raises(ShmFullError) as caught:
        make_pool(small_mount / "pool", slot_count=4, slot_bytes=slot_bytes)
    message = str(caught.value)
    assert f"shared memory at {small_mount} is too small" in message
    # Beside the slots: two pages for the journal, one for the header, one for the lock's note.
    assert f"limit {4 * slot_bytes + 4 * 4096} bytes needed" in message
    assert "or lower slots, slot_initial_bytes or remembered_keys" in message
    assert list(small_mount.iterdir()) == []
    assert free_bytes(small_mount) == free


@pytest.mark.parametrize("leave_pages", range(11))
def test_a_mount_that_fills_up_at_any_point_is_refused_and_nothing_is_left(
    small_mount: Path, leave_pages: int
) -> None:
    # Needs a page for the lock's note, two for each of three slots, two for the journal, one for the header.
    fill_up(small_mount, leave_pages * 4096)
    if leave_pages < 10:
        with pytest.raises(ShmFullError, match=str(small_mount)):
            make_pool(small_mount / "pool", slot_bytes=2 * 4096)
    else:
        pool = make_pool(small_mount / "pool", slot_bytes=2 * 4096)
        for index in range(3):
            pool.files[index].body(0, 4096)[:] = b"x" * 4096
        pool.close()
        del pool  # and with it its views, which keep their pages
    assert [file.name for file in small_mount.iterdir()] == ["filler"]
    assert free_bytes(small_mount) == leave_pages * 4096


@pytest.mark.parametrize("slot_bytes", [4096, 5000])
def test_a_mount_that_gets_all_that_was_said_to_be_needed_is_large_enough(
    small_mount: Path, slot_bytes: int
) -> None:
    def start() -> Pool:
        settings: dict[str, Any] = {"slot_count": 3, "slot_bytes": slot_bytes, "remembered_keys": 100}
        return Pool(small_mount / "pool", **settings, peer=this_peer(), epoch="e")

    fill_up(small_mount, 4096)
    with pytest.raises(ShmFullError) as caught:
        start()
    (small_mount / "filler").unlink()
    limit = re.search(r"limit (\d+) bytes needed", str(caught.value))
    assert limit is not None
    fill_up(small_mount, int(limit[1]))
    start().close()


def test_slots_that_pages_round_up_are_refused_and_not_torn(small_mount: Path) -> None:
    # 4097 bytes take two pages each: the sum of bytes would fit, the sum of pages does not.
    fill_up(small_mount, 100 * 4096)
    with pytest.raises(ShmFullError):
        make_pool(small_mount / "pool", slot_count=60, slot_bytes=4097)
    assert [file.name for file in small_mount.iterdir()] == ["filler"]
    assert free_bytes(small_mount) == 100 * 4096


def test_an_adopted_pool_on_a_full_mount_works_on(small_mount: Path) -> None:
    pool = make_pool(small_mount / "pool")
    body = fill(pool, 1)
    pool.close(keep=True)
    fill_up(small_mount, 0)
    pool = make_pool(small_mount / "pool")
    assert states(pool) == [("FREE", 0), ("READY", 1), ("FREE", 0)]
    assert bytes(pool.files[1].body(0, len(body))) == body
    pool.close()
