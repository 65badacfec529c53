"""The README's examples are the files in examples/, and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import local_daemon

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
QUEUE_PAGE = (ROOT / "docs" / "staging-queue.md").read_text()
AHEAD_PAGE = (ROOT / "docs" / "stage-ahead.md").read_text()


def block_after(marker: str, language: str, page: str = README) -> str:
    """Returns the first fenced block of a language after a marker in a page."""
    found = re.search(rf"```{language}\n(.*?)```", page[page.index(marker) :], re.DOTALL)
    assert found is not None
    return found[1]


def code_of(name: str) -> str:
    """Returns an example without its docstring, as the README shows it."""
    return (ROOT / "examples" / name).read_text().split('"""\n\n', 1)[1]


@pytest.mark.parametrize("name", ["send.py", "train.py"])
def test_the_readme_shows_the_examples_as_they_are(name: str) -> None:
    assert block_after(f"`examples/{name}`", "python") == code_of(name)


def test_the_examples_print_what_the_readme_says() -> None:
    with local_daemon() as daemon:
        environment = os.environ | {
            "FOREBAY_CONTROL_ENDPOINT": daemon.control_endpoint,
            "FOREBAY_TRAINER_ENDPOINT": daemon.trainer_endpoint,
        }
        processes = {
            name: subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / name)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in ("train.py", "send.py")
        }
        try:
            for name, process in processes.items():
                out, errors = process.communicate(timeout=120)
                assert (process.returncode, errors) == (0, "")
                assert out == block_after(f"`examples/{name}`", "text")
        finally:
            for process in processes.values():
                process.kill()


def test_the_page_on_the_queue_shows_its_example_as_it_is_and_what_it_prints() -> None:
    assert block_after("`examples/stage_ahead.py`", "python", QUEUE_PAGE) == code_of("stage_ahead.py")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "stage_ahead.py")], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == block_after("`examples/stage_ahead.py`", "text", QUEUE_PAGE)


@pytest.mark.parametrize("name", ["serve_trainer.py", "train_ahead.py"])
def test_the_page_on_staging_ahead_shows_its_examples_as_they_are(name: str) -> None:
    assert block_after(f"This is `examples/{name}`", "python", AHEAD_PAGE) == code_of(name)


@pytest.fixture
def served() -> Iterator[dict[str, str]]:
    """A daemon, and the example's trainer, which ends in order; yields the environment to find them."""
    with local_daemon() as daemon:
        environment = os.environ | {
            "FOREBAY_CONTROL_ENDPOINT": daemon.control_endpoint,
            "FOREBAY_TRAINER_ENDPOINT": daemon.trainer_endpoint,
            "FOREBAY_WORKER_ENDPOINT": f"ipc://{daemon.pool}/worker.sock",
            "FOREBAY_WORKER_DATA_ENDPOINT": f"ipc://{daemon.pool}/worker-data.sock",
        }
        trainer = subprocess.Popen([sys.executable, str(ROOT / "examples" / "serve_trainer.py")], env=environment)
        try:
            yield environment
            trainer.terminate()
            assert trainer.wait(timeout=60) == 0
        finally:
            trainer.kill()
            trainer.wait()


def run_example(name: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_loop_of_the_page_on_staging_ahead_prints_what_it_says(served: dict[str, str]) -> None:
    assert run_example("train_ahead.py", served) == block_after("`examples/train_ahead.py`", "text", AHEAD_PAGE)


def test_the_adapter_trains_an_asynchronous_rl_loop(served: dict[str, str]) -> None:
    lines = run_example("async_rl.py", served).splitlines()
    losses = [float(line.removeprefix(f"step {step}: loss ")) for step, line in enumerate(lines)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
