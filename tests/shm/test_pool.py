"""A pool from its creation to its closing, and the one daemon that has it."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest

from forebay.shm import (
    BODY_OFFSET,
    HOLDERS_NAME,
    JOURNAL_NAME,
    LAYOUT_VERSION,
    LOCK_NAME,
    FileLock,
    PoolHeader,
    SlotState,
    SlotView,
    holder_path,
    is_held,
    make_private_folder,
    slot_path,
)
from forebay.wire import HeldError

from .pool_makers import OWN, SLOT_BYTES, fill, make_pool, snapshot, states
from .processes import Spawn, this_peer


@pytest.fixture
def path(shm_dir: Path) -> Path:
    return shm_dir / "pool"


# --- creating and closing ---


def test_a_new_pool_has_its_slots_reserved_free_and_private(path: Path) -> None:
    pool = make_pool(path)
    assert repr(pool) == f"Pool({str(path)!r}, 3 slots)"
    slots = pool.found_slots()
    assert [(slot.index, slot.state, slot.generation, slot.slot_bytes) for slot in slots] == [
        (index, SlotState.FREE, 0, SLOT_BYTES) for index in range(3)
    ]
    for index in range(3):
        status = slot_path(path, index).stat()
        assert (status.st_size, stat.S_IMODE(status.st_mode)) == (SLOT_BYTES, 0o600)
        assert status.st_blocks * 512 >= SLOT_BYTES
    assert sorted(file.name for file in path.iterdir()) == sorted(
        [LOCK_NAME, HOLDERS_NAME, JOURNAL_NAME, "pool.json", "slot-0000", "slot-0001", "slot-0002"]
    )
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path / HOLDERS_NAME).stat().st_mode) == 0o700
    assert msgspec.json.decode((path / "pool.json").read_bytes(), type=PoolHeader) == PoolHeader(
        LAYOUT_VERSION, "epoch"
    )
    assert is_held(path / LOCK_NAME)
    pool.close()


@pytest.mark.parametrize("slot_bytes", [0, 1, BODY_OFFSET])
def test_a_slot_has_its_header_page_at_least(path: Path, slot_bytes: int) -> None:
    pool = make_pool(path, slot_bytes=slot_bytes)
    assert [slot.slot_bytes for slot in pool.found_slots()] == [BODY_OFFSET] * 3
    pool.close()


def test_closing_removes_the_pool_and_a_second_close_does_nothing(path: Path, shm_dir: Path) -> None:
    pool = make_pool(path)
    fill(pool, 1)
    FileLock(holder_path(path, "holder"), this_peer()).close()
    pool.close()
    assert list(shm_dir.iterdir()) == []
    other = make_pool(path)
    before = snapshot(shm_dir)
    pool.close()
    pool.close(keep=True)
    assert snapshot(shm_dir) == before
    other.close()


def test_closing_with_keep_leaves_everything_for_the_next_daemon(path: Path, shm_dir: Path) -> None:
    pool = make_pool(path)
    body = fill(pool, 1, generation=4)
    before = snapshot(shm_dir)
    pool.close(keep=True)
    assert snapshot(shm_dir) == before
    assert not is_held(path / LOCK_NAME)
    # Kept is kept: a second close must not remove what may be another's by now.
    pool.close()
    assert snapshot(shm_dir) == before
    pool = make_pool(path, epoch="next")
    assert states(pool) == [("FREE", 0), ("READY", 4), ("FREE", 0)]
    assert bytes(SlotView(path, 1).read(4)[1]) == body
    pool.close()


@pytest.mark.parametrize("keep", [True, False])
def test_views_stay_valid_when_the_pool_is_closed(path: Path, keep: bool) -> None:
    pool = make_pool(path)
    body = fill(pool, 0)
    mine = pool.files[0].body(0, len(body))
    _, theirs = SlotView(path, 0).read(1)
    array = np.frombuffer(theirs, np.uint8)
    pool.close(keep=keep)
    assert path.exists() == keep
    assert bytes(mine) == bytes(theirs) == array.tobytes() == body
    shutil.rmtree(path, ignore_errors=True)
    assert bytes(mine) == bytes(theirs) == array.tobytes() == body


def test_foreign_files_in_the_folder_are_left_alone(path: Path) -> None:
    path.mkdir(mode=0o700)
    names = [
        "notes.txt",
        "slot-",
        "slot-7",
        "slot-0001.bak",
        "slot-00009",
        "slot-\u0660\u0660\u0660\u0668",
        "slot--001",
        "slot-x",
    ]
    for name in names:
        (path / name).write_text("precious")
    pool = make_pool(path, slot_count=2)
    assert len(pool.files) == 2
    pool.close()
    assert sorted(file.name for file in path.iterdir()) == sorted(names)
    assert {file.read_text() for file in path.iterdir()} == {"precious"}


def test_a_pool_whose_folder_was_removed_takes_nothing_from_its_successor(path: Path, shm_dir: Path) -> None:
    pool = make_pool(path)
    shutil.rmtree(path)
    successor = make_pool(path, epoch="successor")
    fill(successor, 0)
    before = snapshot(shm_dir)
    pool.close()
    assert snapshot(shm_dir) == before
    with pytest.raises(HeldError):
        make_pool(path)
    successor.close()


def test_closing_while_a_trainer_adds_its_lock_still_releases_the_pool(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(path)
    # The trainer's lock file appears after the folder was emptied.
    monkeypatch.setattr("forebay.shm.pool.remove_holders", lambda pool: (pool / HOLDERS_NAME / "late").touch())
    pool.close()
    assert [file.name for file in path.iterdir()] == [HOLDERS_NAME]
    monkeypatch.undo()
    pool = make_pool(path)
    pool.close()
    assert not path.exists()


# --- one pool, one daemon ---


def test_a_second_daemon_is_refused_by_the_holders_name_and_the_first_is_untouched(
    path: Path, shm_dir: Path, spawn: Spawn
) -> None:
    first = spawn(OWN, path)
    assert first.hear() == "owns"
    before = snapshot(shm_dir)
    with pytest.raises(HeldError) as caught:
        make_pool(path, slot_count=5, slot_bytes=50_000)
    assert f"{path / LOCK_NAME} is held by child pid {first.pid} on elsewhere since" in str(caught.value)
    assert snapshot(shm_dir) == before
    first.go_on()
    assert first.hear() == "FREE FREE FREE"
    first.go_on()
    assert first.finish() == 0
    assert list(shm_dir.iterdir()) == []


def test_a_second_daemon_in_this_process_is_refused_too(path: Path, shm_dir: Path) -> None:
    pool = make_pool(path)
    before = snapshot(shm_dir)
    with pytest.raises(HeldError, match=f"pid {os.getpid()} on here"):
        make_pool(path)
    assert snapshot(shm_dir) == before
    pool.close()


def test_a_daemon_that_comes_while_another_leaves_makes_the_folder_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def make_and_lose(folder: Path, what: str, gid: int | None) -> None:
        make_private_folder(folder, what, gid)
        calls.append(folder)
        if len(calls) == 1:
            folder.rmdir()  # the other daemon's last deed

    monkeypatch.setattr("forebay.shm.pool.make_private_folder", make_and_lose)
    pool = make_pool(path)
    assert calls == [path, path]
    assert is_held(path / LOCK_NAME)
    pool.close()
