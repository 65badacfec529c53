"""The soak's parts: its plan, its micro-batches, its books, its proxy, and what it finds left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.benchmarks import soak_place
from forebay.benchmarks.soak_faults import (
    ADVANCE,
    CUT,
    DROP,
    FAULTS,
    KILL,
    LEASE_S,
    MAX_VERSIONS_BEHIND,
    RESET,
    STALL,
    STOP,
    STRANGER,
    SWALLOW,
    TO_DAEMON,
    TO_ORCHESTRATOR,
    chosen,
    plan,
)
from forebay.benchmarks.soak_parties import bad_lines
from forebay.benchmarks.soak_party import Party
from forebay.benchmarks.soak_payload import MAX_BODY_BYTES, SoakExample, digest, freshness, micro_batch
from forebay.benchmarks.soak_place import Place
from forebay.benchmarks.soak_result import SoakResult, SoakSettings
from forebay.benchmarks.soak_wire import Wire, free_ports
from forebay.benchmarks.soak_words import Book, OrchestratorLine, Reader, Told, read_lines
from forebay.wire import Limits, SettingError, default_registry, describe, flatten

WAIT_S = 30.0


# The plan.


def test_a_plan_follows_from_its_seed() -> None:
    assert plan(7, 180, tuple(FAULTS)) == plan(7, 180, tuple(FAULTS))
    assert plan(7, 180, tuple(FAULTS)) != plan(8, 180, tuple(FAULTS))


@pytest.mark.parametrize("seed", range(20))
def test_three_minutes_have_sixty_kills_stalls_and_cuts(seed: int) -> None:
    faults = plan(seed, 180, tuple(FAULTS))
    assert sum(fault.kind in (KILL, STOP, CUT) for fault in faults) >= 60
    assert {fault.kind for fault in faults} <= set(FAULTS)


@pytest.mark.parametrize("seed", range(20))
def test_three_minutes_have_resets_strangers_and_versions_that_grow_but_for_a_reset(seed: int) -> None:
    faults = plan(seed, 180, tuple(FAULTS))
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert sum(fault.kind == RESET for fault in faults) >= 10
    assert sum(fault.kind == STRANGER for fault in faults) >= 10
    told = [fault for fault in faults if fault.kind in (RESET, ADVANCE)]
    for before, after in itertools.pairwise(told):
        if after.kind == ADVANCE:
            assert after.version == before.version + 1
        else:
            # A daemon that did not forget would take what comes next to be stale.
            assert after.version == max(0, before.version - MAX_VERSIONS_BEHIND - 1)


def test_what_comes_at_its_own_pace_changes_nothing_of_the_rest() -> None:
    violence = [kind for kind in FAULTS if kind not in (RESET, ADVANCE, STRANGER)]
    rest = [fault for fault in plan(3, 180, tuple(FAULTS)) if fault.kind in violence]
    assert rest == plan(3, 180, tuple(violence))


def test_the_plan_of_no_faults_is_empty() -> None:
    assert plan(3, 180, ()) == []


def test_what_is_stopped_outlasts_the_lease() -> None:
    stops = [fault for fault in plan(3, 600, (STOP,)) if fault.kind == STOP]
    assert stops
    assert all(fault.lasts_s > LEASE_S for fault in stops)


@pytest.mark.parametrize(
    ("words", "kinds"), [("all", tuple(FAULTS)), ("none", ()), ("kill", (KILL,)), ("cut, kill", (CUT, KILL))]
)
def test_faults_are_chosen_by_name(words: str, kinds: tuple[str, ...]) -> None:
    assert chosen(words) == kinds


@pytest.mark.parametrize("words", ["", "kill,maim"])
def test_an_unknown_fault_names_those_that_there_are(words: str) -> None:
    with pytest.raises(SettingError, match="limit all, none, or some of kill, term, stop"):
        SoakSettings(faults=words)


@pytest.mark.parametrize(
    ("name", "value"), [("minutes", 0.0), ("slots", 0), ("in_flight", 0), ("watchdog_s", 1.0)]
)
def test_a_wrong_setting_names_itself_and_its_range(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"setting {name}; got {value}; limit"):
        SoakSettings(**{name: value})


# Micro-batches.


def test_a_key_has_the_same_micro_batch_in_every_life() -> None:
    assert digest(micro_batch(1, "a")) == digest(micro_batch(1, "a"))
    assert len({digest(micro_batch(seed, key)) for seed in (1, 2) for key in ("a", "b")}) == 4


def test_some_keys_are_behind_and_some_expire_the_same_in_every_life() -> None:
    found = [freshness(1, str(number)) for number in range(400)]
    assert found == [freshness(1, str(number)) for number in range(400)]
    assert found != [freshness(2, str(number)) for number in range(400)]
    assert {behind for behind, _ in found} == {None, 0, 1, MAX_VERSIONS_BEHIND, MAX_VERSIONS_BEHIND + 1}
    expiries = [expires_s for _, expires_s in found if expires_s is not None]
    assert 20 < len(expiries) < 120
    assert min(expiries) < 0.05
    assert max(expiries) > 1


def test_micro_batches_come_eagerly_and_in_chunks_and_fit_a_slot() -> None:
    limits = Limits(max_micro_batch_bytes=MAX_BODY_BYTES)
    sizes, dtypes = [], set()
    for number in range(60):
        flat = flatten(micro_batch(0, str(number)), registry=default_registry, limits=limits)
        sizes.append(describe(flat, limits).payload_bytes)
        dtypes |= {str(array.dtype) for array in flat.arrays}
    assert min(sizes) < 64 << 10
    assert max(sizes) > 8 << 20
    assert len(dtypes) > 8


def test_a_digest_sees_bytes_dtype_shape_structure_and_static_values() -> None:
    tree = micro_batch(0, "a")
    example = tree["example"]
    changed = example.inputs.copy()
    changed[0, 0] += 1
    others = [
        tree | {"example": dataclasses.replace(example, inputs=changed)},
        tree | {"example": dataclasses.replace(example, inputs=example.inputs.view("int32"))},
        tree | {"example": dataclasses.replace(example, inputs=example.inputs.reshape(-1))},
        tree | {"example": dataclasses.replace(example, weight=2.0)},
        tree | {"odd": list(tree["odd"])},
        tree | {"more": None},
    ]
    assert isinstance(example, SoakExample)
    assert len({digest(other) for other in (tree, *others)}) == 1 + len(others)


# Books.


def test_a_reader_gets_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "book.jsonl"
    reader = Reader(path, OrchestratorLine)
    assert reader.more() == []
    lines = [OrchestratorLine(at=1.0, life=1, key=str(number), what=Told.STAGED) for number in range(3)]
    book = Book(path)
    book.write(lines[0])
    assert reader.more() == lines[:1]
    book.write(lines[1])
    with path.open("ab") as half:
        half.write(msgspec.json.encode(lines[2])[:10])
    assert reader.more() == lines[1:2]
    assert reader.more() == []
    book.close()


def test_the_next_life_writes_behind_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "book.jsonl"
    lines = [OrchestratorLine(at=1.0, life=life, key="a", what=Told.ATTEMPT) for life in (1, 2)]
    for line in lines:
        book = Book(path)
        book.write(line)
        book.close()
    assert read_lines(path, OrchestratorLine) == lines


def test_errors_and_tracebacks_in_a_log_are_found_and_warnings_are_not(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.write_text(
        "2026 WARNING forebay.daemon refuse code=in_use\n"
        "2026 ERROR forebay.trainer link_failed\n"
        "Traceback (most recent call last):\n  File x\nValueError: no\n"
    )
    found = bad_lines(log)
    assert len(found) == 2
    assert "link_failed" in found[0]
    assert "ValueError: no" in found[1]
    assert bad_lines(tmp_path / "none.log") == []


# Processes.


def test_a_killed_party_lives_again_and_is_told_its_lasting_order(tmp_path: Path) -> None:
    code = "import sys; print('up', flush=True); open(sys.argv[1], 'a').write(sys.stdin.readline())"
    (tmp_path / "child.py").write_text(code)
    heard = tmp_path / "heard"

    def environment() -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(tmp_path)}

    def command(_life: int) -> list[str]:
        return ["child", str(heard)]

    with Party("child", command, environment, tmp_path / "log", sys.executable) as party:
        assert party.wait_until_at_work(WAIT_S)
        assert party.signal(signal.SIGKILL)
        party.order("go on", lasts=True)
        party.may_end()
        assert party.wait_until_ended(WAIT_S)
        assert [life.code for life in party.lives] == [-signal.SIGKILL, 0]
        assert heard.read_text() == "go on\n"
        assert not party.runs
        assert not party.signal(signal.SIGKILL)


def test_a_party_that_was_told_to_end_before_it_might_stay_away_comes_back(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('up', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    (tmp_path / "child.py").write_text(code)

    def environment() -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(tmp_path)}

    with Party("child", lambda _: ["child"], environment, tmp_path / "log", sys.executable) as party:
        assert party.wait_until_at_work(WAIT_S)
        assert party.signal(signal.SIGTERM)
        party.may_end()
        party.order("go on", lasts=True)
        assert party.wait_until_ended(WAIT_S)
        assert party.lives[0].code == 0
        assert len(party.lives) == 2


def test_a_party_goes_on_when_the_last_of_its_stops_is_over(tmp_path: Path) -> None:
    code = "import sys\nprint('up', flush=True)\nfor line in sys.stdin: open(sys.argv[1], 'a').write(line)"
    (tmp_path / "child.py").write_text(code)

    def environment() -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(tmp_path)}

    with Party(
        "child", lambda _: ["child", str(tmp_path / "h")], environment, tmp_path / "l", sys.executable
    ) as party:
        assert party.wait_until_at_work(WAIT_S)
        first, second = party.stop(), party.stop()
        assert first is not None
        assert second is first
        assert is_stopped(first.pid)
        party.go_on(first)
        assert state_of(first.pid) == "T"
        party.go_on(second)
        assert not is_stopped(first.pid)
        # A stop of a life that is over does not end one of the next.
        assert party.stop() is first
        assert party.signal(signal.SIGKILL) is first
        while len(party.lives) == 1 or not party.runs:
            party.wait_until_ended(0.01)
        later = party.stop()
        assert later is party.lives[1]
        assert is_stopped(later.pid)
        party.go_on(first)
        assert state_of(later.pid) == "T"


def is_stopped(pid: int) -> bool:
    """Waits until a child was stopped or went on, and tells whether it is stopped now."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED)
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# The proxy.


@contextlib.contextmanager
def listening() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire whose control port leads to a socket of the test."""
    control, data, *own = free_ports(4)
    with socket.create_server(("127.0.0.1", control)) as server, Wire(control, data, (own[0], own[1])) as wire:
        server.settimeout(WAIT_S)
        yield wire, server


def dial(wire: Wire) -> socket.socket:
    host, _, port = wire.endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def test_a_wire_carries_both_ways() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            here.sendall(b"hello")
            assert there.recv(64) == b"hello"
            there.sendall(b"welcome")
            assert here.recv(64) == b"welcome"


def test_a_dropped_wire_ends_its_connections_and_takes_new_ones() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            here.sendall(b"x")
            assert there.recv(1) == b"x"
            wire.begin(DROP, "both ways")
            assert ended(here)
            assert ended(there)
        with dial(wire) as again:
            second, _ = server.accept()
            with second:
                again.sendall(b"x")
                assert second.recv(1) == b"x"


def test_a_stalled_wire_delivers_later_and_loses_nothing() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            wire.begin(STALL, TO_DAEMON)
            # What goes the other way passes, and shows that the stall has begun.
            there.sendall(b"x")
            assert here.recv(1) == b"x"
            here.sendall(b"late")
            wire.end(STALL, TO_DAEMON)
            assert there.recv(64) == b"late"


def test_a_swallowing_wire_loses_bytes_and_then_the_connection() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            wire.begin(SWALLOW, TO_ORCHESTRATOR)
            here.sendall(b"x")
            assert there.recv(1) == b"x"
            there.sendall(b"never seen")
            wire.end(SWALLOW, TO_ORCHESTRATOR)
            assert ended(here)


def test_of_two_cuts_the_first_that_ends_lets_nothing_pass_that_the_other_holds() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            wire.begin(STALL, "both ways")
            wire.begin(STALL, TO_DAEMON)
            here.sendall(b"late")
            there.sendall(b"x")
            wire.end(STALL, "both ways")
            # What only the first one held passes, and shows that it has ended.
            assert here.recv(1) == b"x"
            there.settimeout(0.2)
            with pytest.raises(TimeoutError):
                there.recv(1)
            there.settimeout(WAIT_S)
            wire.end(STALL, TO_DAEMON)
            assert there.recv(64) == b"late"


def ended(connection: socket.socket) -> bool:
    """Tells whether a connection ended with no byte more."""
    connection.settimeout(WAIT_S)
    try:
        return connection.recv(64) == b""
    except ConnectionError:
        return True


# What is left.


def test_what_is_left_in_its_folders_is_found_and_removed(shm_dir: Path) -> None:
    with Place(shm_dir, None, 2) as place:
        assert place.left_behind() == {}
        assert not place.is_private_mount
        place.pool.mkdir()
        (place.pool / "slot-0000").write_bytes(bytes(8192))
        socket_file = Path(place.trainer_endpoint.removeprefix("ipc://"))
        socket_file.touch()
        assert place.left_behind() == {
            str(place.pool): 1,
            str(place.pool / "slot-0000"): 8192,
            str(socket_file): 1,
        }
        assert place.bytes_beyond_limit() == 0
    assert list(shm_dir.iterdir()) == []


def test_a_pool_beyond_its_limit_is_counted(shm_dir: Path) -> None:
    with Place(shm_dir, None, 1) as place:
        place.pool.mkdir()
        with (place.pool / "slot-0000").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, MAX_BODY_BYTES + (32 << 20))
        assert place.bytes_beyond_limit() > 0


def test_a_mount_is_given_back_when_the_last_of_its_fills_is_over(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak_place, "_FILL_STEPS", ())
    with Place(shm_dir, None, 1) as place:
        place.fill()
        place.fill()
        place.make_room()
        assert place.filler.exists()
        place.make_room()
        assert not place.filler.exists()


@pytest.mark.parametrize(
    "name", ["lost", "duplicated", "wrong_bytes", "stuck_slots", "leaked_bytes", "unexplained_errors"]
)
def test_a_result_is_clean_only_if_all_six_are_zero(name: str) -> None:
    empty: dict[str, Any] = {"int": 0, "list": [], "dict": {}}
    kinds = {field: kind.partition("[")[0] for field, kind in SoakResult.__annotations__.items()}
    fields = {field: empty[kind] for field, kind in kinds.items() if kind in empty}
    clean = SoakResult(**fields, settings=SoakSettings())
    assert clean.is_clean
    assert not msgspec.structs.replace(clean, **{name: 1}).is_clean
