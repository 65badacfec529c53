"""`forebay top` on a real terminal, looking at a real daemon; whatever ends it, the terminal is as it was."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import LocalDaemon, local_daemon

from ..end_to_end.fed_orchestrator import stage, status
from .screen import EVENT_S, Screen

StartScreen = Callable[..., Screen]


@pytest.fixture
def start_daemon(shm_dir: Path) -> Iterator[Callable[..., LocalDaemon]]:
    daemons: list[LocalDaemon] = []
    common: dict[str, Any] = {
        f"{name}_endpoint": f"ipc://{shm_dir}/{name}.sock" for name in ("control", "data", "trainer")
    }

    def start_one(**settings: Any) -> LocalDaemon:
        common.update(pool=str(shm_dir / "pool"), slot_initial_bytes=1 << 16, drain_s=0.0)
        daemons.append(local_daemon(**{**common, "slots": 20, **settings}))
        return daemons[-1]

    yield start_one
    for daemon in daemons:
        daemon.close()


@pytest.fixture
def daemon(start_daemon: Callable[..., LocalDaemon]) -> LocalDaemon:
    return start_daemon()


@pytest.fixture
def start() -> Iterator[StartScreen]:
    screens: list[Screen] = []

    def start_one(daemon: LocalDaemon, *arguments: str, **options: Any) -> Screen:
        own = ("--endpoint", daemon.control_endpoint, "--interval-s", "0.1")
        screens.append(Screen("top", *own, *arguments, **options))
        return screens[-1]

    yield start_one
    for screen in screens:
        screen.close()


def assert_restored(screen: Screen) -> None:
    assert not screen.is_alternate
    assert screen.is_cursor_shown
    assert screen.modes == screen.before


def seen(screen: Screen) -> Screen:
    """Waits until the daemon is shown, on a terminal that is then another one than it was."""
    screen.until_seen(r"daemon \d+ on .* serving")
    assert screen.is_alternate
    assert not screen.is_cursor_shown
    assert screen.modes != screen.before
    return screen


# What is shown.


def test_what_the_daemon_holds_is_shown_as_it_changes(daemon: LocalDaemon, start: StartScreen) -> None:
    screen = seen(start(daemon))
    assert "key-1" not in screen.text()
    stage(daemon, "key-1")
    screen.until_seen(r"\n +\d+\.\d+ +READY +train +key-1 ")
    screen.until_seen(r"published \d+\.\d/s")
    assert len(screen.lines) == 24
    assert all(len(line.rstrip()) <= 80 for line in screen.lines)


def test_keys_scroll_sort_reverse_freeze_help_and_quit(daemon: LocalDaemon, start: StartScreen) -> None:
    screen = seen(start(daemon))
    screen.until_seen("slots 1 to 17 of 20")
    screen.type(b"\x1b[B")
    screen.until_seen("slots 2 to 18 of 20")
    screen.type(b"\x1b[6~")
    screen.until_seen("slots 4 to 20 of 20")
    screen.type(b"s")
    screen.until_seen("sort by age")
    screen.type(b"sssr")
    screen.until_seen(r"held s\s*\n *19\.\d+ ")
    screen.type(b"h")
    screen.until_seen("this help")
    screen.type(b"hf")
    screen.until_seen("FROZEN")
    stage(daemon, "while frozen")
    assert "while frozen" not in screen.text()
    screen.type(b" r")
    screen.until_seen("while frozen")
    screen.type(b"q")
    assert screen.ended() == 0
    assert_restored(screen)


def test_a_terminal_that_changes_its_size_is_filled_anew(daemon: LocalDaemon, start: StartScreen) -> None:
    screen = seen(start(daemon, "--interval-s", "3600"))
    screen.resize(100, 40)
    screen.until_seen(r"\n *19\.\d+ +FREE")
    screen.type(b"q")
    screen.ended()


def test_a_daemon_that_restarts_is_away_meanwhile_and_then_watched_on(
    start_daemon: Callable[..., LocalDaemon], start: StartScreen
) -> None:
    first = start_daemon()
    screen = seen(start(first))
    first.process.kill()
    first.process.wait()
    screen.until_seen(r"AWAY since \d\d:\d\d:\d\d, \d+ s")
    second = start_daemon()
    screen.until_seen(rf"daemon {second.pid} on .* serving")
    stage(second, "after")
    screen.until_seen("after")
    screen.type(b"q")
    assert screen.ended() == 0
    assert_restored(screen)


# Whatever ends it.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_it_would_any_process_and_restores_the_terminal(
    daemon: LocalDaemon, start: StartScreen, number: signal.Signals
) -> None:
    screen = seen(start(daemon))
    screen.process.send_signal(number)
    assert screen.ended() == -number
    assert_restored(screen)


def test_ctrl_c_ends_it_and_restores_the_terminal(daemon: LocalDaemon, start: StartScreen) -> None:
    screen = seen(start(daemon))
    screen.type(b"\x03")
    assert screen.ended() == 130
    assert_restored(screen)
    assert "Traceback" not in screen.text()


SHELL = (
    "import os, signal, subprocess, sys\n"
    "signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-m', 'forebay.cli', *sys.argv[1:]], process_group=0)\n"
    "os.tcsetpgrp(0, child.pid)\n"
    "sys.exit(child.wait())\n"
)
"""As much of a shell as it takes for Ctrl-Z: a command has a process group of its own in the shell's session."""


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(daemon: LocalDaemon, start: StartScreen) -> None:
    screen = seen(start(daemon, code=SHELL))
    (pid,) = _children_of(screen.process.pid)
    screen.type(b"\x1a")
    screen.until(lambda _: _state_of(pid) == "T", "the stop")
    screen.until(lambda screen: not screen.is_alternate, "the terminal as it was")
    assert_restored(screen)
    os.kill(pid, signal.SIGCONT)
    seen(screen)
    screen.type(b"q")
    assert screen.ended() == 0
    assert_restored(screen)


BROKEN = (
    "import sys\n"
    "from forebay.cli.live import watch\n"
    "def frame(*_, **__):\n"
    "    raise RuntimeError('broken on purpose')\n"
    "draw = watch.frame\n"
    "frames = iter(range(3))\n"
    "watch.frame = lambda *a, **k: draw(*a, **k) if next(frames, None) is not None else frame()\n"
    "from forebay.cli import main\n"
    "sys.exit(main())\n"
)


def test_an_error_of_ours_restores_the_terminal_before_it_is_told(daemon: LocalDaemon, start: StartScreen) -> None:
    screen = start(daemon, code=BROKEN)
    assert screen.ended() == 1
    assert_restored(screen)
    assert "broken on purpose" in screen.text()


# Where there is no terminal.


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forebay.cli", "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=EVENT_S, check=False)


def test_without_a_terminal_one_plain_frame_is_printed(daemon: LocalDaemon) -> None:
    stage(daemon, "key-1")
    done = run("--endpoint", daemon.control_endpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.search(r"^ +\d+\.\d+ +READY +train +key-1 ", done.stdout, re.MULTILINE)
    assert done.stdout.count("FREE") == 19


def test_once_prints_one_plain_frame_on_a_terminal_too(daemon: LocalDaemon, start: StartScreen) -> None:
    screen = start(daemon, "--once")
    assert screen.ended() == 0
    assert_restored(screen)


def test_its_json_is_that_of_the_status(daemon: LocalDaemon) -> None:
    done = run("--endpoint", daemon.control_endpoint, "--once", "--json")
    assert json.loads(done.stdout)["epoch"] == status(daemon).epoch


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
