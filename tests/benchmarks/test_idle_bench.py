"""The benchmark of idle processes, short, as its user runs it; no figure that depends on speed is asserted."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

from forebay.benchmarks.idle_result import IdleBenchSettings
from forebay.wire import SettingError

COMMAND = [sys.executable, "-m", "forebay.cli", "bench", "idle"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_the_process_that_uses_most_is_the_figure() -> None:
    done = bench("--settle-s", "0", "--idle-s", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    fractions = result["cpu_fractions"]
    assert set(fractions) == set(result["processes"]) == {"orchestrator", "daemon", "trainer"}
    assert result["cpu_fraction"] == max(fractions.values())
    assert all(fraction >= 0 for fraction in fractions.values())
    assert result["idle_s"] >= 0.2
    assert len(set(result["processes"].values())) == 3
    assert not any(psutil.pid_exists(pid) for pid in result["processes"].values())


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_the_table_fits_a_narrow_terminal() -> None:
    done = bench("--settle-s", "0", "--idle-s", "0.1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[0] == "cpu_fraction"
    assert [line.split()[-1] for line in lines[1:4]] == ["orchestrator", "daemon", "trainer"]
    assert all(line.startswith("bench idle: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize(("name", "value"), [("settle_s", -1), ("idle_s", 0)])
def test_a_wrong_setting_names_itself_and_its_range(name: str, value: int) -> None:
    with pytest.raises(SettingError, match=f"setting {name}; got {value}; limit"):
        IdleBenchSettings(**{name: value})
