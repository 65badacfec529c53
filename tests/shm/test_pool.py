from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forebay.shm import (
    BODY_OFFSET,
    HOLDERS_NAME,
    JOURNAL_NAME,
    LOCK_NAME,
    Envelope,
    FileLock,
    Pool,
    PoolHeader,
    SlotState,
    SlotView,
    free_bytes,
    holder_fault,
    holder_path,
    is_held,
    lock_holder,
    make_private_folder,
    remove_orphan,
    slot_path,
)
from forebay.wire import GIB, MIB, HeldError, HostError, ShmFullError

from .processes import Spawn, fill_up, this_peer, wait_free

SLOT_BYTES = 20_000


@pytest.fixture
def path(shm_dir: Path) -> Path:
    return shm_dir / "pool"


def make_pool(path: Path, slot_count: int = 3, slot_bytes: int = SLOT_BYTES, epoch: str = "epoch") -> Pool:
    return Pool(
        path, slot_count=slot_count, slot_bytes=slot_bytes, remembered_keys=2, peer=this_peer(), epoch=epoch
    )


def fill(pool: Pool, index: int, generation: int = 1) -> bytes:
    """Publishes a micro-batch in a slot and returns its body."""
    body = bytes(np.random.default_rng(index).bytes(10_000))
    envelope = Envelope(queue="q", key=f"key-{index}", attempt="a", manifest=b"m")
    pool.files[index].write_loan(generation, msgspec.msgpack.encode(envelope), len(body))
    pool.files[index].body(0, len(body))[:] = body
    pool.files[index].write_state(SlotState.READY, sequence=index)
    return body


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns every file under a folder: its inode, mode and contents."""
    return {
        str(file.relative_to(folder)): (
            file.lstat().st_ino,
            file.lstat().st_mode,
            file.read_bytes() if stat.S_ISREG(file.lstat().st_mode) else b"",
        )
        for file in sorted(folder.rglob("*"))
    }


def states(pool: Pool) -> list[tuple[str, int]]:
    return [(slot.state.name, slot.generation) for slot in pool.found_slots()]


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
    assert msgspec.json.decode((path / "pool.json").read_bytes(), type=PoolHeader) == PoolHeader(2, "epoch")
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

OWN = """
pool = Pool(Path(sys.argv[1]), slot_count=3, slot_bytes=20_000, remembered_keys=2, peer=PEER, epoch="kid")
say("owns")
pause()
say(*(slot.state.name for slot in pool.found_slots()))
pause()
pool.close()
"""


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


# --- orphans ---


def test_an_orphan_is_removed_whatever_is_in_it(orphan: Path, shm_dir: Path) -> None:
    (orphan / "notes.txt").touch()
    assert remove_orphan(orphan, this_peer())
    assert list(shm_dir.iterdir()) == []
    assert not remove_orphan(orphan, this_peer())


def test_a_living_pool_is_no_orphan(path: Path, shm_dir: Path, spawn: Spawn) -> None:
    child = spawn(OWN, path)
    assert child.hear() == "owns"
    before = snapshot(shm_dir)
    assert not remove_orphan(path, this_peer())
    assert snapshot(shm_dir) == before


def test_a_folder_without_a_lock_file_is_no_orphan(path: Path, shm_dir: Path) -> None:
    path.mkdir()
    (path / "slot-0000").touch()
    (path / "deeper").mkdir()
    (path / "deeper" / LOCK_NAME).mkdir()
    before = snapshot(shm_dir)
    for folder in (path, path / "missing", path / "slot-0000", path / "deeper"):
        assert not remove_orphan(folder, this_peer())
    assert snapshot(shm_dir) == before


# --- adopting ---

LIVE = """
import msgspec
pool = Pool(Path(sys.argv[1]), slot_count=6, slot_bytes=20_000, remembered_keys=2, peer=PEER, epoch="child")
def loan(index, generation):
    encoded = msgspec.msgpack.encode(Envelope("q", f"key-{index}", "a", b"m"))
    pool.files[index].write_loan(generation, encoded, 10_000)
    pool.files[index].body(0, 10_000)[:] = bytes([index]) * 10_000
loan(1, 11)
for index in (2, 3, 4, 5):
    loan(index, 10 + index)
    pool.files[index].write_state(SlotState.READY, sequence=100 - index)
pool.files[3].write_state(SlotState.LENT, sequence=97, holder="holder3")
pool.files[4].write_state(SlotState.QUARANTINED, sequence=96, holder="holder4")
pool.files[5].write_state(SlotState.FREE)
say("owns")
pause()
"""


@pytest.fixture
def orphan(path: Path, spawn: Spawn) -> Iterator[Path]:
    """A pool with a slot in every state, whose daemon was killed."""
    child = spawn(LIVE, path)
    assert child.hear() == "owns"
    child.kill()
    wait_free(path / LOCK_NAME)
    yield path
    shutil.rmtree(path, ignore_errors=True)


ORPHAN_STATES = [("FREE", 0), ("FREE", 11), ("READY", 12), ("LENT", 13), ("QUARANTINED", 14), ("FREE", 15)]


def test_a_killed_daemons_pool_is_adopted_with_all_that_its_slots_hold(orphan: Path) -> None:
    pool = make_pool(orphan, slot_count=6, epoch="second")
    assert pool.files[1].header().state is SlotState.FILLING
    assert states(pool) == ORPHAN_STATES
    # The half-filled one is FREE in its header as well.
    assert pool.files[1].header().state is SlotState.FREE
    assert states(pool) == ORPHAN_STATES
    for index in (2, 3, 4):
        assert pool.files[index].envelope().key == f"key-{index}"
        assert bytes(pool.files[index].body(0, 10_000)) == bytes([index]) * 10_000
        assert pool.files[index].header().sequence == 100 - index
    assert [pool.files[index].header().holder for index in (2, 3, 4)] == ["", "holder3", "holder4"]
    assert b"second" in (orphan / "pool.json").read_bytes()
    pool.close()
    assert not orphan.exists()


def test_an_adopted_pool_may_grow_in_slots_and_bytes_and_loses_none(orphan: Path) -> None:
    pool = make_pool(orphan, slot_count=8, slot_bytes=50_000)
    assert states(pool) == [*ORPHAN_STATES, ("FREE", 0), ("FREE", 0)]
    assert [slot.slot_bytes for slot in pool.found_slots()] == [50_000] * 8
    assert bytes(pool.files[2].body(0, 10_000)) == b"\2" * 10_000
    pool.close(keep=True)
    pool = make_pool(orphan, slot_count=1, slot_bytes=BODY_OFFSET)
    assert states(pool) == [*ORPHAN_STATES, ("FREE", 0), ("FREE", 0)]
    assert [slot.slot_bytes for slot in pool.found_slots()] == [50_000] * 8
    pool.close()
    assert not orphan.exists()


def test_a_missing_slot_file_in_an_adopted_pool_is_made_anew(orphan: Path) -> None:
    slot_path(orphan, 0).unlink()
    slot_path(orphan, 3).unlink()
    pool = make_pool(orphan, slot_count=1)
    expected = list(ORPHAN_STATES)
    expected[3] = ("FREE", 0)
    assert states(pool) == expected
    pool.close()


@pytest.mark.parametrize("sick", [0, 2, 5])
def test_a_foreign_file_among_the_slots_stops_the_daemon_and_costs_no_micro_batch(
    orphan: Path, shm_dir: Path, sick: int
) -> None:
    slot_path(orphan, sick).write_bytes(b"notes")
    before = snapshot(shm_dir)
    with pytest.raises(HostError, match="not a slot file"):
        make_pool(orphan, slot_count=9)
    after = snapshot(shm_dir)
    assert {name: after[name] for name in after if "slot" in name} == {
        name: before[name] for name in before if "slot" in name
    }
    assert not is_held(orphan / LOCK_NAME)


@pytest.mark.parametrize("slot_bytes", [1 << 50, 1 << 70])
def test_an_adopted_pool_that_cannot_grow_costs_no_micro_batch(
    orphan: Path, shm_dir: Path, slot_bytes: int
) -> None:
    before = snapshot(shm_dir)
    with pytest.raises(ShmFullError):
        make_pool(orphan, slot_bytes=slot_bytes)
    after = snapshot(shm_dir)
    assert after.keys() == before.keys()
    assert {name: after[name] for name in after if "slot" in name} == {
        name: before[name] for name in before if "slot" in name
    }
    pool = make_pool(orphan)
    assert states(pool) == ORPHAN_STATES
    pool.close()


FORK_OWNERS = """
while sys.stdin.readline():
    alive, mine = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(mine)
        pool = Pool(Path(sys.argv[1]), slot_count=3, slot_bytes=20_000, remembered_keys=2, peer=PEER, epoch="kid")
        say(os.getpid())
        os.read(alive, 1)
        os._exit(0)
    os.close(alive)
    os.waitpid(pid, 0)
    os.close(mine)
    say("reaped")
"""


def test_twenty_kill_cycles_leave_one_pool(path: Path, shm_dir: Path, spawn: Spawn) -> None:
    daemons = spawn(FORK_OWNERS, path)
    sizes = set()
    for _ in range(20):
        daemons.go_on()
        pid = int(daemons.hear())
        assert is_held(path / LOCK_NAME)
        os.kill(pid, signal.SIGKILL)
        assert daemons.hear() == "reaped"
        sizes.add(sum(file.lstat().st_blocks for file in path.rglob("*")))
    assert [file.name for file in shm_dir.iterdir()] == ["pool"]
    assert len(list(path.iterdir())) == 7
    assert len(sizes) == 1
    make_pool(path).close()
    assert list(shm_dir.iterdir()) == []


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


def test_the_locks_of_trainers_that_died_without_a_daemon_are_removed(path: Path) -> None:
    make_pool(path).close(keep=True)
    living, dead = holder_path(path, "living"), holder_path(path, "dead")
    lock = FileLock(living, this_peer())
    FileLock(dead, this_peer()).close()
    assert dead.exists()
    pool = make_pool(path)
    assert living.exists()
    assert not dead.exists()
    lock.close()
    pool.close()
