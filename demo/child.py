"""What the demonstration's child processes have in common."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from forebay.wire import ForebayError

from .endpoints import Endpoints, decode_endpoints
from .settings import DemoSettings, decode_settings


def run_child(work: Callable[[Endpoints, DemoSettings], None]) -> None:
    """Runs a child process: `python -m MODULE ENDPOINTS SETTINGS`.

    A Forebay error ends it with one line on standard error and exit code 1. It also ends when its standard input
    does, which is when whoever started it is gone.
    """
    try:
        endpoints, settings = decode_endpoints(sys.argv[1]), decode_settings(sys.argv[2])
        threading.Thread(target=_end_with_parent, args=(endpoints,), daemon=True).start()
        work(endpoints, settings)
    except ForebayError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _end_with_parent(endpoints: Endpoints) -> None:
    # os.read, not sys.stdin: a thread inside of a buffered read would upset the interpreter's exit.
    while os.read(0, 4096):
        pass
    endpoints.remove_worker_files()
    os._exit(1)
