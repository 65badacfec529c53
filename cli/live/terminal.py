"""A terminal that is drawn on as a whole, and is as it was before when that is over, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .frame import Kind, Line

_STYLES: Final = {
    Kind.PLAIN: "",
    Kind.TITLE: "bold",
    Kind.HEADER: "reverse",
    Kind.ALARM: "bold red",
    Kind.KEYS: "dim",
}


class Terminal:
    """A context manager: inside, the terminal shows what is drawn, and keys come as they are pressed.

    Attributes:
        keys: The descriptor that keys come from; None if standard input is no terminal.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self.keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] | None = None
        self._live: Live | None = None

    @property
    def size(self) -> tuple[int, int]:
        """How many columns and lines it has now."""
        size = self._console.size
        return size.width, size.height

    def __enter__(self) -> Self:
        try:
            self.take()
        except BaseException:
            self.give_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    def take(self) -> None:
        """Takes it, again if somebody else had it meanwhile."""
        if self.keys is not None:
            if self._before is None:
                self._before = termios.tcgetattr(self.keys)
            tty.setcbreak(self.keys, termios.TCSADRAIN)
        if self._live is None:
            self._live = Live(console=self._console, screen=True, auto_refresh=False)
            self._live.start()

    def give_back(self) -> None:
        """Makes it what it was before; also a terminal that is gone is no reason to fail."""
        live, self._live = self._live, None
        before, self._before = self._before, None
        try:
            if live is not None:
                with contextlib.suppress(OSError):
                    live.stop()
        finally:
            if before is not None and self.keys is not None:
                with contextlib.suppress(OSError, termios.error):
                    termios.tcsetattr(self.keys, termios.TCSADRAIN, before)

    def draw(self, lines: Iterable[Line]) -> None:
        """Shows lines, one below the other."""
        assert self._live is not None, "drawn on a terminal that was given back"
        text = Text("\n", no_wrap=True, overflow="crop").join(
            Text(line.words, style=_STYLES[line.kind]) for line in lines
        )
        self._live.update(text, refresh=True)

    def stop_process(self) -> None:
        """Gives the terminal back and has this process stopped, as Ctrl-Z asks for; takes it again afterwards."""
        self.give_back()
        os.kill(os.getpid(), signal.SIGTSTP)  # with no handler of ours: it returns when the process goes on
        self.take()
