"""What the demonstration's child processes have in common."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence

from forebay.wire import ForebayError

from .endpoints import Endpoints, decode_endpoints
from .settings import decode_settings


def run_child(work: Callable[..., None]) -> None:
    """Runs a child process: `python -m MODULE SETTINGS [ENDPOINTS]`.

    A Forebay error ends it with one line on standard error and exit code 1. It also ends when its standard input
    does, which is when whoever started it is gone.

    Args:
        work: Called with the settings, and with the endpoints if there are some.
    """
    try:
        settings, endpoints = decode_settings(sys.argv[1]), [decode_endpoints(text) for text in sys.argv[2:]]
        threading.Thread(target=_end_with_parent, args=(endpoints,), daemon=True).start()
        work(settings, *endpoints)
    except ForebayError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _end_with_parent(endpoints: Sequence[Endpoints]) -> None:
    # os.read, not sys.stdin: a thread inside of a buffered read would upset the interpreter's exit.
    while os.read(0, 4096):
        pass
    for each in endpoints:
        each.remove_worker_files()
    os._exit(1)
