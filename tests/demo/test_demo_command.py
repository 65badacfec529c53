"""`forebay demo` with its real processes: what it proves, and what it leaves when one of them dies."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from forebay.wire import ExitCode

COMMAND = [sys.executable, "-m", "forebay.cli", "demo", "--payload-mib", "1"]
TIMEOUT_S = 100


@pytest.fixture
def running_demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demonstration that would run for long, once its first micro-batch is trained."""
    process = subprocess.Popen(
        [*COMMAND, "--steps", "5000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # one of the tests kills it before it can clean up
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if " trained (" in line:
                break
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def pool_of(daemon: psutil.Process) -> Path:
    pool = Path(daemon.environ()["FOREBAY_POOL"])
    assert pool.exists()
    return pool


def children_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    found = psutil.Process(process.pid).children()
    return {child.cmdline()[2].removeprefix("forebay.").removeprefix("demo."): child for child in found}


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | changes,
    )


@pytest.fixture
def no_matplotlib(tmp_path: Path) -> dict[str, str]:
    """An environment in which matplotlib cannot be imported."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no matplotlib here')")
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{path}" if path else str(tmp_path)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "serialize", "stage"])
def test_demo_trains_bit_for_bit_what_was_sent_and_leaves_nothing(mode: str) -> None:
    done = run("--steps", "2", "--micro-batches", "3", "--mode", mode, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["mode"] == mode
    assert result["bit_identical"] is True
    assert result["differences"] == []
    assert result["leaked_shm"] == []
    assert result["micro_batches"] == 6
    assert result["steps"] == len(result["step_metrics"]) == 2
    assert result["payload_bytes"] >= 6 * 2**20
    assert [len(losses) for losses in result["losses"]] == [3, 3]
    assert result["compared_leaves"] == 6 * 16
    assert sorted(result["processes"]) == ["daemon", "orchestrator", "trainer"]
    assert len(set(result["processes"].values())) == 3
    assert (result["staged"], result["inline"]) == ((0, 6) if mode == "off" else (6, 0))
    assert result["fallbacks"] == 0
    assert sum(metrics["queue/promotions"] for metrics in result["step_metrics"]) == result["staged"]
    assert 0 <= result["idle_fraction"] < 1
    assert result["daemon_private_mib"] > 0
    assert result["timeline"] is None


@pytest.mark.slow
def test_all_modes_give_the_same_bits_and_one_picture(tmp_path: Path) -> None:
    file = tmp_path / "all.png"
    done = run("--compare", "--micro-batches", "2", "--timeline", str(file), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    modes = result["modes"]
    assert [mode["mode"] for mode in modes] == ["off", "serialize", "stage"]
    assert [mode["inline"] for mode in modes] == [4, 0, 0]
    assert result["bit_identical"] is True
    assert modes[0]["losses"] == modes[1]["losses"] == modes[2]["losses"]
    assert len({mode["parameters_digest"] for mode in modes}) == 1
    assert len({pid for mode in modes for pid in mode["processes"].values()}) == 9
    assert modes[0]["wire_gbit_s"] == modes[1]["wire_gbit_s"] == modes[2]["wire_gbit_s"] > 0
    assert result["leaked_shm"] == []
    assert result["timeline"] == str(file)
    assert file.read_bytes().startswith(b"\x89PNG")
    rows = [line.split()[0] for line in done.stderr.splitlines() if line.endswith("yes")]
    assert rows == ["off", "serialize", "stage"]


def test_timeline_without_matplotlib_is_refused_before_anything_runs(
    tmp_path: Path, no_matplotlib: dict[str, str]
) -> None:
    done = run("--timeline", str(tmp_path / "t.png"), **no_matplotlib)
    assert done.returncode == 2
    assert done.stderr == "forebay: a timeline needs matplotlib; pip install 'forebay[plot]'\n"
    assert done.stdout == ""


def test_compare_without_matplotlib_says_that_it_draws_nothing_and_goes_on(no_matplotlib: dict[str, str]) -> None:
    command = subprocess.Popen(
        [*COMMAND, "--compare", "--json"], stderr=subprocess.PIPE, text=True, env=os.environ | no_matplotlib
    )
    assert command.stderr is not None
    first = command.stderr.readline()
    assert first == "no timeline is drawn: a timeline needs matplotlib; pip install 'forebay[plot]'\n"
    command.send_signal(signal.SIGINT)
    _, words = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 130, words
    assert words == "forebay demo: interrupted; all its processes have ended\n"


def test_compare_with_a_mode_is_refused() -> None:
    done = run("--compare", "--mode", "off")
    assert done.returncode == 2
    assert done.stderr.startswith("forebay: option --mode; got off; limit none with --compare")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["daemon", "orchestrator", "trainer"])
def test_killed_process_is_named_in_one_line_and_the_others_end(
    running_demo: subprocess.Popen[str], victim: str
) -> None:
    children = children_of(running_demo)
    assert sorted(children) == ["daemon", "orchestrator", "trainer"]
    pool = pool_of(children["daemon"])
    children[victim].kill()
    _, words = running_demo.communicate(timeout=TIMEOUT_S)
    assert running_demo.returncode == ExitCode.NO_ANSWER
    assert words.splitlines()[-1].startswith(
        f"forebay: the {victim} (pid {children[victim].pid}) was killed by signal 9"
    )
    psutil.wait_procs(list(children.values()), timeout=TIMEOUT_S)
    assert not any(child.is_running() for child in children.values())
    assert not pool.exists()


@pytest.mark.slow
def test_interrupt_ends_all_processes_and_leaves_nothing(running_demo: subprocess.Popen[str]) -> None:
    children = children_of(running_demo)
    pool = pool_of(children["daemon"])
    running_demo.send_signal(signal.SIGINT)
    _, words = running_demo.communicate(timeout=TIMEOUT_S)
    assert running_demo.returncode == 130, words
    assert words.splitlines()[-1] == "forebay demo: interrupted; all its processes have ended"
    assert not any(child.is_running() for child in children.values())
    assert not pool.exists()


@pytest.mark.slow
def test_processes_end_when_the_command_is_killed(running_demo: subprocess.Popen[str]) -> None:
    children = children_of(running_demo)
    pool = pool_of(children["daemon"])
    running_demo.kill()
    _, alive = psutil.wait_procs(list(children.values()), timeout=TIMEOUT_S)
    assert alive == []
    assert not pool.exists()


def test_wrong_setting_is_one_line_with_name_value_and_range() -> None:
    done = run("--payload-mib", "2000")
    assert done.returncode == 2
    assert done.stderr == "forebay: setting payload_mib is out of range; got 2000.0; limit 0.01 to 1024.0\n"
