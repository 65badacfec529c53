"""The benchmark of small micro-batches, as its user runs it; no figure that depends on speed is asserted."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys

import psutil
import pytest

from forebay.benchmarks.small_result import SmallBenchSettings
from forebay.wire import SettingError

COMMAND = [sys.executable, "-m", "forebay.cli", "bench", "small"]
WAIT_S = 60.0


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param((), id="as it comes"),
        pytest.param(("--cap", "0"), id="no cap"),
        pytest.param(("--slots", "1"), id="fewer slots than callers"),
        pytest.param(("--in-flight", "30"), id="more callers than micro-batches"),
    ],
)
def test_every_micro_batch_of_every_round_is_consumed(odd: tuple[str, ...]) -> None:
    done = bench("--micro-batches", "20", "--rounds", "3", *odd, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rates = [one["per_s"] for one in result["rounds"]]
    assert len(rates) == 3
    assert result["per_s"] == statistics.median(rates)
    assert result["per_s_spread"] == [min(rates), max(rates)]
    assert set(result["cpu_s_per_1000"]) == set(result["processes"]) == {"orchestrator", "daemon", "trainer"}
    for name, (low, high) in result["cpu_s_per_1000_spread"].items():
        assert 0 < low <= result["cpu_s_per_1000"][name] <= high
    assert result["payload_bytes"] == pytest.approx(16 << 10, rel=0.1)
    assert "left out" in result["copy"]
    assert len(set(result["processes"].values())) == 3
    assert not any(psutil.pid_exists(pid) for pid in result["processes"].values())


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_the_table_fits_a_narrow_terminal() -> None:
    done = bench("--micro-batches", "5", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[:5]] == ["per_s", "per_s_cap_1", *["cpu_s_per_1000"] * 3]
    assert all(line.startswith("bench small: ") for line in done.stderr.splitlines())


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_an_interrupted_run_leaves_no_process_and_no_pool() -> None:
    process = subprocess.Popen([*COMMAND, "--micro-batches", "100000"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "warming up" in process.stderr.readline()
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(WAIT_S) == 130
    assert process.stderr.read() == ""
    process.stderr.close()
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert not alive


@pytest.mark.parametrize(
    ("name", "value"),
    [("payload_kib", 1), ("micro_batches", 0), ("rounds", 0), ("in_flight", 0), ("slots", 0), ("cap", -1)],
)
def test_a_wrong_setting_names_itself_and_its_range(name: str, value: int) -> None:
    with pytest.raises(SettingError, match=f"setting {name}; got {value}; limit"):
        SmallBenchSettings(**{name: value})
