"""`forebay top`: the daemon's slots and queues, looked at again and again."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from forebay.wire.plain_json import json_line

from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .live.frame import Shown, plain_frame
from .table import terminal_columns


@asks_daemon()
def top(
    inspector: Inspector,
    interval_s: Annotated[float, typer.Option(help="seconds from one look to the next", min=0.1, max=3600)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="look once, as where there is no terminal")] = False,
    json: JsonOption = False,
) -> None:
    """Watch slots and queues; h shows the keys.

    It asks the daemon once an interval, and goes on when the daemon is back after a restart. With --json it looks
    once, and prints what `forebay status --json` does.
    """
    if json:
        sys.stdout.write(json_line(inspector.status()))
    elif once or not sys.stdout.isatty():
        sys.stdout.write(plain_frame(Shown(inspector.status()), columns=terminal_columns()))
    else:
        _end_as_asked(inspector.talk(lambda daemon: _watch(daemon, interval_s)))


async def _watch(daemon: Conversation, interval_s: float) -> int:
    # Only who watches pays for a library that draws.
    from .live.terminal import Terminal
    from .live.watch import Watch

    watch = Watch(daemon, Terminal(), interval_s)
    await watch.run()
    return watch.ended_by


def _end_as_asked(number: int) -> None:
    """Ends by the signal that ended the watch, now that the terminal is as it was, so that a parent sees it."""
    if number:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
