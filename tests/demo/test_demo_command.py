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
            if "trained, loss" in line:
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


@pytest.mark.slow
def test_demo_trains_bit_for_bit_what_was_sent_and_leaves_nothing() -> None:
    done = subprocess.run(
        [*COMMAND, "--steps", "2", "--micro-batches", "3", "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bit_identical"] is True
    assert result["leaked_shm"] == []
    assert result["micro_batches"] == 6
    assert result["steps"] == 2
    assert result["payload_bytes"] >= 6 * 2**20
    assert [len(losses) for losses in result["losses"]] == [3, 3]
    assert sorted(result["processes"]) == ["daemon", "orchestrator", "trainer"]
    assert len(set(result["processes"].values())) == 3
    assert 0 <= result["idle_fraction"] < 1
    assert result["daemon_private_mib"] > 0


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
    assert running_demo.returncode == 1
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
    done = subprocess.run(
        [*COMMAND, "--payload-mib", "2000"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "forebay: setting payload_mib is out of range; got 2000.0; limit 0.01 to 1024.0\n"
