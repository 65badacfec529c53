"""The benchmark of staging ahead, small, as its user runs it; no figure that depends on speed is asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from forebay.benchmarks.floor import Schedule, floor_of
from forebay.benchmarks.overlap_result import COMPUTE_S, WIRES, OverlapBenchSettings
from forebay.wire import SettingError

COMMAND = [sys.executable, "-m", "forebay.cli", "bench", "overlap"]
TINY = ("--payload-mib", "1", "--compute-s", "0.2", "--steps", "1")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_each_schedule_on_a_wire_is_a_row_beside_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CODEC", "bitshuffle-lz4")  # would send fewer bytes than the wire's times are of
    picture = tmp_path / "timeline.png"
    done = bench(*TINY, "--wire", "compressed", "--json", "--timeline", str(picture))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = result["rows"]
    assert [(row["wire"], row["schedule"]) for row in rows] == [
        ("compressed", schedule) for schedule in ("inline", "within", "across")
    ]
    workload = OverlapBenchSettings(payload_mib=1, compute_s=0.2, steps=1).workload("compressed")
    for row in rows:
        assert row["floor_s"] == floor_of(workload, Schedule(row["schedule"])).total_s
        assert row["over_floor"] == pytest.approx(row["total_s"] / row["floor_s"])
        assert row["idle_s"] == pytest.approx(row["total_s"] - workload.busy_s)
        assert row["total_s"] >= workload.busy_s
        assert row["fallbacks"] == 0
    assert rows[0]["total_s"] >= rows[0]["floor_s"]
    assert len(set(result["processes"].values())) == 3
    for stand_in in ("compute", "wire", "copy"):
        assert "timed wait" in result[stand_in] or "throttled" in result[stand_in]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not any(psutil.pid_exists(pid) for pid in result["processes"].values())


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_an_interrupted_run_leaves_no_process_and_no_pool() -> None:
    process = subprocess.Popen([*COMMAND, *TINY[:-2], "--steps", "100"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "run 1 of" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    os.kill(process.pid, signal.SIGINT)
    process.stderr.read()
    assert process.wait(60) == 130
    process.stderr.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_wrong_setting_is_one_line_and_exit_code_2() -> None:
    done = bench("--wire", "wet string")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "forebay: setting wires; got ('wet string',); limit steady, compressed, trace\n"
    with pytest.raises(SettingError, match=r"setting compute_s; got 0"):
        OverlapBenchSettings(compute_s=0)


@pytest.mark.parametrize("wire", WIRES)
def test_the_scaled_workload_keeps_the_real_ones_ratios(wire: str) -> None:
    scaled = OverlapBenchSettings(compute_s=0.5).workload(wire)
    scale = 0.5 / COMPUTE_S
    assert scaled.wire_s == pytest.approx([seconds * scale for seconds in WIRES[wire]])
    assert scaled.copy_s / scaled.compute_s == pytest.approx(0.38, abs=0.005)
    assert scaled.update_s / scaled.compute_s == pytest.approx(0.97, abs=0.005)
    assert len(scaled.wire_s) == 9
