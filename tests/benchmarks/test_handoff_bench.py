"""The benchmark of hand-overs, small, as its user runs it; no figure that depends on speed is asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from forebay.benchmarks.handoff_result import HandoffBenchSettings
from forebay.wire import SettingError

COMMAND = [sys.executable, "-m", "forebay.cli", "bench", "handoff"]
TINY = ("--small-count", "5", "--large-mib", "4", "--large-count", "3")
CUT_SHORT = ("--small-count", "100000", "--large-mib", "1")
WAIT_S = 60.0


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_each_size_is_handed_over_so_often_and_views_come_before_the_take_is_over() -> None:
    done = bench(*TINY, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    small, large = result["small"], result["large"]
    assert (small["count"], large["count"]) == (5, 3)
    assert small["payload_bytes"] == pytest.approx(64 << 10, rel=0.05)
    assert large["payload_bytes"] == pytest.approx(4 << 20, rel=0.01)
    for row in (small, large):
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"]
        assert row["p50_us"] < row["take_p50_us"] <= row["take_p99_us"]
        assert row["trainer_cpu_ms"] > 0
    medians = sorted([small["p50_us"], large["p50_us"]])
    assert result["equal"] == pytest.approx(medians[1] / medians[0])
    per_byte = large["trainer_cpu_ms"] / 1000 / large["payload_bytes"]
    assert result["trainer_cpu_s_per_gb"] == pytest.approx(per_byte * 1e9)
    assert len(set(result["processes"].values())) == 3
    assert "left out" in result["copy"]
    assert not any(psutil.pid_exists(pid) for pid in result["processes"].values())


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_the_table_fits_a_narrow_terminal() -> None:
    done = bench(*TINY)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith(" ") and "_" in line] == ["trainer_cpu_s_per_gb"]
    assert all(line.startswith("bench handoff: ") for line in done.stderr.splitlines())


def running_bench() -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    process = subprocess.Popen([*COMMAND, *CUT_SHORT], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "hand-overs of" in process.stderr.readline()
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    return process, children


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_cut_short_leaves_no_process_and_no_pool(number: int, code: int) -> None:
    process, children = running_bench()
    os.kill(process.pid, number)
    assert process.wait(WAIT_S) == code
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert not alive
    assert process.stderr is not None
    process.stderr.close()


@pytest.mark.parametrize(
    ("name", "value"), [("small_mib", 0), ("small_count", 1), ("large_mib", 9000), ("large_count", 0)]
)
def test_a_wrong_setting_names_itself_and_its_range(name: str, value: int) -> None:
    with pytest.raises(SettingError, match=f"setting {name}; got {value}; limit"):
        HandoffBenchSettings(**{name: value})
