"""The soak, short, as its user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay.benchmarks import soak_bench, soak_run
from forebay.benchmarks.soak_bench import run
from forebay.benchmarks.soak_evidence import Evidence, Injected
from forebay.benchmarks.soak_faults import KILL, ROLES, TRAINER, Fault
from forebay.benchmarks.soak_parties import make_parties
from forebay.benchmarks.soak_party import Party
from forebay.benchmarks.soak_place import Place
from forebay.benchmarks.soak_result import SoakSettings
from forebay.benchmarks.soak_run import Run
from forebay.benchmarks.soak_words import Did, TrainerLine, read_lines

COMMAND = [sys.executable, "-m", "forebay.cli", "bench", "soak"]
SIX = ("lost", "duplicated", "wrong_bytes", "stuck_slots", "leaked_bytes", "unexplained_errors")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_a_short_soak_loses_nothing_and_leaves_its_books(shm_dir: Path, tmp_path: Path) -> None:
    # Without kills of the daemon, which forgets then what is consumed.
    arguments = ("--minutes", "0.3", "--faults", "stop,cut,garbage,cancel,reset,advance,stranger", "--seed", "3")
    done = bench(*arguments, "--shm", str(shm_dir), "--keep", str(tmp_path), "--json")
    result = json.loads(done.stdout)
    assert {name: result[name] for name in SIX} == dict.fromkeys(SIX, 0), done.stderr
    assert done.returncode == 0
    assert result["micro_batches"] > 0
    assert result["stalls"] + result["cuts"] > 0
    assert result["resets"] > 0
    assert result["stale"] > 0
    assert result["strangers"] > 0
    assert result["seed"] == 3
    assert result["left_out"] == []
    assert result["stand_ins"]
    did = read_lines(tmp_path / "trainer.jsonl", TrainerLine)
    # Else nothing would be noticed that is trained though it must not be.
    transferred = {line.key for line in did if line.what is Did.TRANSFER}
    assert {line.key for line in did if line.what is Did.END} <= transferred
    assert list(shm_dir.iterdir()) == []
    assert all(line.startswith("bench soak: ") for line in done.stderr.splitlines())


@pytest.mark.slow
def test_a_soak_without_faults_meets_no_trouble(shm_dir: Path) -> None:
    result = run(SoakSettings(minutes=0.1, faults="none", shm=str(shm_dir)))
    assert result.unexplained == []
    assert (result.explained, result.injected, result.plan) == ({}, {}, [])
    assert result.is_clean
    assert list(shm_dir.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ROLES)
def test_an_end_of_each_party_that_nobody_injected_is_counted(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    begin = Run._inject_all

    def kill_and_begin(self: Run) -> None:
        assert self._parties[victim].signal(signal.SIGKILL)
        begin(self)

    monkeypatch.setattr(Run, "_inject_all", kill_and_begin)
    others = [Injected(at=0.0, over_at=0.0, life=1, fault=fault) for fault in faults_of_all_but(victim)]
    monkeypatch.setattr(soak_bench, "Evidence", lambda injected, *rest: Evidence([*injected, *others], *rest))
    result = run(SoakSettings(minutes=0.05, faults="garbage", shm=str(shm_dir)))
    assert [words for words in result.unexplained if f"{victim} exit -9: life 1" in words]


def faults_of_all_but(victim: str) -> list[Fault]:
    return [Fault(at_s=0.0, kind=KILL, victim=other) for other in ROLES if other != victim]


@pytest.mark.slow
def test_a_daemon_that_lets_anything_be_trained_is_found(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_limit(self: Place, *, keep_pool: bool) -> dict[str, str]:
        given = daemon_environment(self, keep_pool=keep_pool)
        return {name: value for name, value in given.items() if name != "FOREBAY_MAX_VERSIONS_BEHIND"}

    daemon_environment = Place.daemon_environment
    monkeypatch.setattr(Place, "daemon_environment", without_the_limit)
    result = run(SoakSettings(minutes=0.3, faults="advance", shm=str(shm_dir)))
    assert result.unexplained_errors > 0
    assert all("trained though it was behind" in words for words in result.unexplained)


@pytest.mark.slow
def test_a_soak_without_a_trainer_gives_up_and_says_what_it_saw(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_but_the_trainer(*arguments: Any) -> list[Party]:
        return [party for party in make_parties(*arguments) if party.name != TRAINER]

    monkeypatch.setattr(soak_run, "make_parties", all_but_the_trainer)
    result = run(SoakSettings(minutes=1, faults="cancel", watchdog_s=8, shm=str(shm_dir)))
    assert not result.is_clean
    (watchdog,) = [words for words in result.unexplained if "watchdog" in words]
    assert "nothing was trained for " in watchdog
    assert "READY" in watchdog  # what the daemon held
    assert "Current thread" in watchdog or "Thread 0x" in watchdog
    assert result.lost > 0
    assert list(shm_dir.iterdir()) == []


@pytest.mark.slow
def test_a_soak_without_keys_leaves_the_strangers_out(shm_dir: Path) -> None:
    result = run(SoakSettings(minutes=0.1, faults="cancel,stranger", keys=False, shm=str(shm_dir)))
    assert result.is_clean
    assert result.faults == ["cancel"]
    assert result.left_out == ["stranger: without keys everybody may enter"]


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_the_table_fits_a_narrow_terminal() -> None:
    done = bench("--minutes", "0.05", "--faults", "cancel")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[0] == "micro_batches"


def test_a_wrong_setting_is_one_line_and_exit_code_2() -> None:
    done = bench("--minutes", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "forebay: setting minutes; got 0.0; limit 0.05 to 10000\n"
