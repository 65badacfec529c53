"""Commands whose standard streams are closed, or lead to where nothing can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

FULL = "/dev/full"
COMMANDS = (("version",), ("doctor", "--no-self-test", "--json"), ("serve", "--help"))


def run(words: Sequence[str], redirections: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with a shell's redirections, which can close a stream."""
    command = f'exec "$@" {redirections}'
    return subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "forebay", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        # A stream that Python does not buffer fails earlier, and leaves nothing to be written at the end.
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )


@pytest.mark.parametrize("words", COMMANDS)
def test_what_cannot_be_written_is_told_in_one_line(words: Sequence[str]) -> None:
    done = run(words, f"> {FULL}")
    assert done.returncode == 1
    assert done.stderr == "forebay: standard output cannot be written (No space left on device)\n"
    assert run(words, f"> {FULL} 2> {FULL}").returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_ends_no_command(closed: str) -> None:
    done = run(("version",), closed)
    assert done.returncode == 0
    assert done.stderr == ""
    assert bool(done.stdout) is ("1" not in closed and ">&-" not in closed.replace("2>&-", ""))


def test_whoever_reads_no_more_ends_a_command_without_a_word() -> None:
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "version"],
        stdout=writing_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    os.close(writing_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_error_has_its_exit_code_also_where_it_cannot_be_told() -> None:
    words = ("status", "--endpoint", "ftp://nowhere")
    assert run(words, "").returncode == 2
    for redirections in ("2>&-", f"2> {FULL}"):
        assert run(words, redirections).returncode == 2
