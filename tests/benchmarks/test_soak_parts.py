"""The soak's parts: its books, its processes, and what it finds left behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.benchmarks import soak_place
from forebay.benchmarks.soak_parties import bad_lines
from forebay.benchmarks.soak_party import Party
from forebay.benchmarks.soak_payload import MAX_BODY_BYTES
from forebay.benchmarks.soak_place import Place
from forebay.benchmarks.soak_result import SoakResult, SoakSettings
from forebay.benchmarks.soak_words import Book, OrchestratorLine, Reader, Told, read_lines

WAIT_S = 30.0


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
