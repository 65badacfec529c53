"""What the demonstration's child processes have in common."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from forebay.wire import ForebayError

from .settings import DemoSettings, decode_settings


def run_child(work: Callable[[str, DemoSettings], None]) -> None:
    """Runs a child process: `python -m MODULE ENDPOINT SETTINGS`.

    A Forebay error ends it with one line on standard error and exit code 1. It also ends when its standard input
    does, which is when whoever started it is gone.
    """
    endpoint, settings = sys.argv[1:3]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(endpoint, decode_settings(settings))
    except ForebayError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    # os.read, not sys.stdin: a thread inside of a buffered read would upset the interpreter's exit.
    while os.read(0, 4096):
        pass
    os._exit(1)
