"""`forebay bench` itself: what it lists, what it imports, and how it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

PEERS = ("--group", "peers")
COMMANDS = ("queue", "overlap", "ingest", "handoff", "small", "idle", "soak")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_help_lists_every_benchmark() -> None:
    done = python("-m", "forebay.cli", "bench", "--help")
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.partition("Commands:\n")[2].splitlines() if line.strip()]
    assert set(COMMANDS) <= set(listed)


def test_what_is_not_run_is_not_imported() -> None:
    code = (
        "import sys, forebay.cli.bench\n"
        "print(*(name for name in sys.modules if name.endswith('_bench') or name in ('jax', 'forebay.daemon')))"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("handoff", "--large-count", "1"), "setting large_count; got 1; limit 2 to 100000"),
        (("ingest", "--pairs", "0"), "setting pairs; got 0; limit 1 to 1000"),
        (("small", "--rounds", "0"), "setting rounds; got 0; limit 1 to 1000"),
        (("idle", "--idle-s", "0"), "setting idle_s; got 0.0; limit 0.1 to 3600"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = python("-m", "forebay.cli", "bench", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"forebay: {words}\n")


@pytest.mark.slow
@pytest.mark.usefixtures("shm_dir")
def test_the_ingest_benchmark_prints_tables_that_fit_a_narrow_terminal() -> None:
    ways = [word for name in ("raw_tcp", "forebay_tcp") for word in ("--way", name)]
    done = python("-m", "forebay.cli", "bench", "ingest", *ways, "--payload-mib", "4", "--pairs", "1", *PEERS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    first_words = [line.split()[0] for line in lines]
    assert {"raw_tcp", "forebay_tcp", "over_raw_tcp"} <= set(first_words)
