"""A soak that is ended by a signal ends its processes, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from forebay.benchmarks.soak_party import Party

COMMAND = [sys.executable, "-m", "forebay.cli", "bench", "soak", "--faults", "none", "--minutes", "5"]
PARTIES = 4
WAIT_S = 120.0


@pytest.fixture
def soak(shm_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*COMMAND, "--shm", str(shm_dir)]) as process:
        yield process
        process.kill()
    assert list(shm_dir.iterdir()) == []


def until(what: Callable[[], bool]) -> None:
    waits_until = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < waits_until
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_soak_that_is_ended_leaves_no_process_behind_that_was_stopped(
    soak: subprocess.Popen[bytes], number: int
) -> None:
    until(lambda: len(psutil.Process(soak.pid).children()) == PARTIES)
    parties = psutil.Process(soak.pid).children(recursive=True)
    try:
        for party in parties:
            party.suspend()
        soak.send_signal(number)
        assert soak.wait(WAIT_S) == 130
        assert not [party for party in parties if party.is_running()]
    finally:
        for party in parties:
            if party.is_running():
                party.kill()


def test_a_party_that_has_just_died_when_the_soak_ends_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text("import sys\nprint('up', flush=True)\nsys.stdin.readline()\nsys.exit(3)\n")

    def environment() -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(tmp_path)}

    with Party("child", lambda _: ["child"], environment, tmp_path / "log", sys.executable) as party:
        assert party.wait_until_at_work(WAIT_S)

        def end_meanwhile(_: float) -> None:
            party._is_over = True

        monkeypatch.setattr("forebay.benchmarks.soak_party.time.sleep", end_meanwhile)
        party.order("end by an error")
        assert party.wait_until_ended(WAIT_S)
    assert [life.code for life in party.lives] == [3]
