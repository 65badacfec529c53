"""A command on a terminal of its own, and what stands on its screen: as much of a terminal as tests need."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

EVENT_S = 60.0
"""Seconds to wait for anything; far more than it takes, so that a hang ends as a failure that says so."""
_SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([@-~])|\x1b.")


class Screen:
    """Runs `forebay` with these arguments in the foreground of a pseudo-terminal.

    Attributes:
        lines: What stands on the screen.
        is_alternate: Whether that is the alternate screen.
        is_cursor_shown: Whether the cursor is.
    """

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24, code: str = "") -> None:
        self.size = columns, lines
        self.lines = [""] * lines
        self.is_alternate, self.is_cursor_shown = False, True
        self._row = 0
        self._rest = ""
        self.far, self.near = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.near)
        command = ["-c", code] if code else ["-m", "forebay.cli"]
        self.process = subprocess.Popen(
            # A program, not preexec_fn: that makes Python fork, of which a process that has loaded jax warns.
            ["setsid", "--ctty", sys.executable, *command, *arguments],
            stdin=self.near,
            stdout=self.near,
            stderr=self.near,
            env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
            | {"TERM": "xterm"},
        )

    def resize(self, columns: int, lines: int) -> None:
        self.size = columns, lines
        fcntl.ioctl(self.far, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.near)

    def type(self, keys: bytes) -> None:
        os.write(self.far, keys)

    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, is_so: Callable[[Screen], bool], what: str) -> None:
        """Reads what is written until something is so."""
        deadline = time.monotonic() + EVENT_S
        while not is_so(self):
            left = deadline - time.monotonic()
            assert left > 0, f"{what}: not seen within {EVENT_S} s; the screen is\n{self.text()}"
            self._read(min(left, 0.2))

    def until_seen(self, pattern: str) -> None:
        self.until(lambda screen: re.search(pattern, screen.text()) is not None, pattern)

    def ended(self) -> int:
        """Waits for the end; returns the exit code, or minus the signal."""
        self.until(lambda screen: screen.process.poll() is not None, "the end of the command")
        self._read(0.0)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        os.close(self.far)
        os.close(self.near)

    # What a terminal does.

    def _read(self, wait_s: float) -> None:
        while select.select([self.far], [], [], wait_s)[0]:
            self._show(os.read(self.far, 1 << 16).decode(errors="replace"))
            wait_s = 0.0

    def _show(self, text: str) -> None:
        text = self._rest + text
        cut = text.rfind("\x1b")
        begun = cut >= 0 and _SEQUENCE.match(text, cut) is None
        text, self._rest = (text[:cut], text[cut:]) if begun else (text, "")
        position = 0
        for found in _SEQUENCE.finditer(text):
            self._print(text[position : found.start()])
            self._obey(found)
            position = found.end()
        self._print(text[position:])

    def _obey(self, found: re.Match[str]) -> None:
        match found[1], found[2], found[3]:
            case "?", "1049", on:
                self.is_alternate = on == "h"
                self.lines = [""] * self.size[1]
            case "?", "25", on:
                self.is_cursor_shown = on == "h"
            case "", _, "H":
                self._row = 0
                self.lines = [""] * self.size[1]

    def _print(self, text: str) -> None:
        for index, line in enumerate(text.split("\n")):
            if index:
                self._next_row()
            self.lines[self._row] += line.replace("\r", "")

    def _next_row(self) -> None:
        self._row += 1
        if self._row == len(self.lines):  # it scrolls
            self._row -= 1
            del self.lines[0]
            self.lines.append("")
        self.lines[self._row] = ""
