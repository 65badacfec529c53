"""The command line as a newcomer meets it: its help, and what it says before anything starts."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from forebay.cli.app import COMMANDS
from forebay.daemon import Settings
from forebay.wire import setting_of

BENCHMARKS = ("queue", "overlap", "ingest", "codecs", "handoff", "small", "idle", "soak", "all")
MAX_SUMMARY_CHARS = 60
NO_JAX = (
    "import sys\n"
    "sys.modules['jax'] = None\n"  # how Python itself marks a module that cannot be had
    "from forebay.cli import main\n"
    "sys.exit(main())\n"
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"COLUMNS": "80"},
    )


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "forebay.cli", *arguments)


@pytest.mark.parametrize(("group", "names"), [((), COMMANDS), (("bench",), BENCHMARKS)])
def test_help_tells_every_command_in_a_line_that_is_whole_in_80_columns(
    group: tuple[str, ...], names: tuple[str, ...]
) -> None:
    done = cli(*group, "--help")
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.partition("Commands:\n")[2].splitlines()]
    assert {name for name, _ in lines} >= set(names)
    for _, summary in lines:
        assert summary.endswith(".")
        assert not summary.endswith("...")
        assert len(summary) <= MAX_SUMMARY_CHARS


def test_the_package_is_the_command_as_well_and_imports_no_jax() -> None:
    code = "import runpy, sys; sys.argv[1:] = ['version']; runpy.run_module('forebay', run_name='__main__')"
    done = run("-c", f"import sys; sys.modules['jax'] = None; {code}")
    assert (done.returncode, done.stdout, done.stderr) == (0, cli("version").stdout, "")


def test_help_of_serve_tells_default_and_range_as_that_of_other_commands_does() -> None:
    words = " ".join(cli("serve", "--help").stdout.split())
    assert "slots in the pool [default: 4; 1<=x<=1024]" in words
    assert "info, warning, error [default: info]" in words
    assert "folder of the pool, on a tmpfs [default: this user's]" in words
    for field in dataclasses.fields(Settings):
        known = setting_of(field)
        if known.low is not None:
            assert f"[default: {field.default}; {known.low}<=x<={known.high}]" in words, field.name


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("demo",), "demo"),
        *(
            (("bench", name), f"bench {name}")
            for name in ("queue", "overlap", "handoff", "small", "idle", "soak", "all")
        ),
        (("bench", "all", "--only", "codecs", "--only", "idle"), "bench all"),
    ],
    ids=str,
)
def test_a_command_that_needs_jax_says_so_in_one_line_where_there_is_none(
    command: tuple[str, ...], named: str
) -> None:
    done = run("-c", NO_JAX, *command)
    words = f"forebay: {named} needs jax; pip install 'forebay[trainer]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", words)


@pytest.mark.parametrize(
    "command", [("bench", "codecs", "--rounds", "0"), ("bench", "ingest", "--pairs", "0")], ids=str
)
def test_a_command_that_needs_no_jax_does_not_ask_for_it(command: tuple[str, ...]) -> None:
    done = run("-c", NO_JAX, *command)
    assert done.returncode == 2
    assert "jax" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "--timeout-s", "-1"), "--timeout-s"),
        (("demo", "--slots", "2000"), "--slots"),
        (("demo", "--slots", "0"), "--slots"),
        (("demo", "--timeline", "a.jpg"), "option --timeline; got a.jpg; limit a .png file"),
    ],
)
def test_an_option_out_of_range_is_refused_before_anything_starts(arguments: tuple[str, ...], words: str) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
