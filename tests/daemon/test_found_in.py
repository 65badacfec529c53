"""What a daemon finds in a real pool that another one left: what is whole, since when, and who has it."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from forebay.daemon.adoption import Found, found_in
from forebay.shm import (
    Envelope,
    FileLock,
    Outcome,
    Pool,
    SlotState,
    holder_path,
    lock_holder,
)
from forebay.shm.layout import write_field
from forebay.wire import MIB, MicroBatchState, Peer

from .ledger_peers import manifest_of

NOW = 1000.0
READY_AT, LENT_AT = 900.0, 950.0
TRAINER = Peer(name="a trainer", pid=42, host="gpu")
ME = Peer(name="a daemon", pid=1, host="here")


@pytest.fixture
def pool(shm_dir: Path) -> Iterator[Pool]:
    pool = Pool(shm_dir / "pool", slot_count=2, slot_bytes=20_000, remembered_keys=2, peer=ME, epoch="before")
    yield pool
    pool.close()


def lend(pool: Pool, index: int, state: SlotState = SlotState.LENT, holder: str = "holder") -> None:
    """Brings a slot to a state, as a daemon does."""
    envelope = Envelope(queue="train", key=f"k{index}", attempt="a", manifest=manifest_of(600))
    pool.files[index].write_loan(7, msgspec.msgpack.encode(envelope), 600)
    pool.files[index].write_state(SlotState.READY, sequence=1, ready_at=READY_AT)
    if state is not SlotState.READY:
        pool.files[index].write_state(state, sequence=1, holder=holder, ready_at=READY_AT, lent_at=LENT_AT)


def times(found: Found) -> list[tuple[float, float]]:
    return [(slot.ready_at, slot.lent_at) for slot in found.occupied]


def test_a_trainer_is_known_by_its_lock_while_it_lives(pool: Pool) -> None:
    lend(pool, 0)
    lock = lock_holder(pool.path, "holder", TRAINER)
    found = found_in(pool, NOW)
    assert found.holders == {"holder": TRAINER}
    assert times(found) == [(READY_AT, LENT_AT)]
    assert lock.is_in_place()
    lock.close(remove=True)


def test_a_trainer_that_died_with_the_daemon_is_known_by_the_lock_that_it_left(pool: Pool) -> None:
    lend(pool, 0)
    lock_holder(pool.path, "holder", TRAINER).close()
    assert found_in(pool, NOW).holders == {"holder": TRAINER}


def test_who_had_a_key_on_its_device_is_known_too(pool: Pool, shm_dir: Path) -> None:
    outcome = Outcome(
        queue="train", key="k", attempt="a", state=MicroBatchState.ON_DEVICE, holder="holder", at=LENT_AT
    )
    pool.outcomes.write(outcome)
    lock_holder(pool.path, "holder", TRAINER).close()
    pool.close(keep=True)
    after = Pool(shm_dir / "pool", slot_count=2, slot_bytes=20_000, remembered_keys=2, peer=ME, epoch="after")
    found = found_in(after, NOW)
    assert (found.outcomes, found.holders) == ([outcome], {"holder": TRAINER})
    after.close()


def test_what_a_lock_says_at_length_is_shortened(pool: Pool) -> None:
    lend(pool, 0)
    lock_holder(pool.path, "holder", Peer(name="n" * 500, pid=42, host="h" * 500)).close()
    [peer] = found_in(pool, NOW).holders.values()
    assert (len(peer.name), len(peer.host)) == (64, 64)


NO_NOTES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(b"\xff"),
    "a pid that is none": lambda path: path.write_bytes(
        b'{"peer":{"name":"a","pid":' + b"9" * 40 + b',"host":"h"},"since":""}'
    ),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "no file": lambda _: None,
}


@pytest.mark.parametrize("case", NO_NOTES)
def test_a_lock_that_says_nothing_costs_no_slot_and_stops_no_daemon(pool: Pool, case: str) -> None:
    lend(pool, 0)
    NO_NOTES[case](holder_path(pool.path, "holder"))
    found = found_in(pool, NOW)
    assert found.holders == {}
    assert [slot.holder for slot in found.occupied] == ["holder"]


@pytest.mark.parametrize("name", [b"../../note", b"", b"a\0b", b"\xff" * 64])
@pytest.mark.parametrize("state", [SlotState.LENT, SlotState.QUARANTINED])
def test_a_slot_with_a_damaged_name_of_its_holder_is_left_to_whoever_that_is(
    pool: Pool, shm_dir: Path, state: SlotState, name: bytes
) -> None:
    FileLock(shm_dir / "note", TRAINER).close()
    lend(pool, 0, state)
    lend(pool, 1, SlotState.READY)
    write_field(pool.files[0]._view, "holder", name)
    found = found_in(pool, NOW)
    assert (found.holders, [slot.index for slot in found.occupied]) == ({}, [1])
    assert [slot.state for slot in found.slots] == [state, SlotState.READY]
    assert pool.files[0].header().state is state
    write_field(pool.files[0]._view, "envelope_checksum", 1)
    assert found_in(pool, NOW).slots[0].state is state


@pytest.mark.parametrize("name", ["sequence", "generation"])
def test_a_slot_whose_count_cannot_be_counted_on_from_is_free(pool: Pool, name: str) -> None:
    lend(pool, 0, SlotState.READY)
    write_field(pool.files[0]._view, name, (1 << 64) - 1)
    for _ in range(2):
        found = found_in(pool, NOW)
        assert (found.occupied, found.slots[0].state) == ([], SlotState.FREE)
        assert found.slots[0].generation in (0, 7)


def test_an_envelope_that_would_reach_beyond_its_file_is_damaged_and_copied_by_nobody(pool: Pool) -> None:
    pool.files[0].reserve(64 * MIB)
    pool.files[0].remap()
    lend(pool, 0, SlotState.READY)
    write_field(pool.files[0]._view, "envelope_bytes", 1 << 62)
    tracemalloc.start()
    try:
        assert found_in(pool, NOW).occupied == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MIB


def test_a_ready_slot_is_lent_to_nobody_whatever_a_killed_daemon_had_written(pool: Pool) -> None:
    lend(pool, 0, SlotState.READY)
    write_field(pool.files[0]._view, "lent_at", LENT_AT)
    write_field(pool.files[0]._view, "holder", b"holder")
    lock_holder(pool.path, "holder", TRAINER).close()
    found = found_in(pool, NOW)
    assert (times(found), found.occupied[0].holder, found.holders) == ([(READY_AT, 0.0)], "", {})


@pytest.mark.parametrize("second", [0.0, -1.0, NOW + 1, float("inf"), float("nan")])
@pytest.mark.parametrize("state", [SlotState.LENT, SlotState.QUARANTINED])
def test_times_that_cannot_be_are_taken_for_now(pool: Pool, state: SlotState, second: float) -> None:
    lend(pool, 0, state)
    for name in ("ready_at", "lent_at"):
        write_field(pool.files[0]._view, name, second)
    assert times(found_in(pool, NOW)) == [(NOW, NOW)]
