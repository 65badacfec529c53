"""Pools without a daemon: what is an orphan and may go, and what the next daemon keeps of one."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.shm import BODY_OFFSET, LOCK_NAME, FileLock, SlotState, holder_path, is_held, remove_orphan, slot_path
from forebay.wire import HostError, ShmFullError

from .pool_makers import OWN, make_pool, snapshot, states
from .processes import Spawn, this_peer, wait_free

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
ORPHAN_STATES = [("FREE", 0), ("FREE", 11), ("READY", 12), ("LENT", 13), ("QUARANTINED", 14), ("FREE", 15)]


@pytest.fixture
def path(shm_dir: Path) -> Path:
    return shm_dir / "pool"


@pytest.fixture
def orphan(path: Path, spawn: Spawn) -> Iterator[Path]:
    """A pool with a slot in every state, whose daemon was killed."""
    child = spawn(LIVE, path)
    assert child.hear() == "owns"
    child.kill()
    wait_free(path / LOCK_NAME)
    yield path
    shutil.rmtree(path, ignore_errors=True)


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


def test_the_locks_of_trainers_that_died_without_a_daemon_are_removed(path: Path) -> None:
    make_pool(path).close(keep=True)
    living, dead = holder_path(path, "living"), holder_path(path, "dead")
    lock = FileLock(living, this_peer())
    FileLock(dead, this_peer()).close()
    assert dead.exists()
    pool = make_pool(path)
    assert dead.exists(), "it says who that was"
    pool.remove_dead_holders(spare={"dead"})
    assert dead.exists()
    pool.remove_dead_holders()
    assert living.exists()
    assert not dead.exists()
    lock.close()
    pool.close()
