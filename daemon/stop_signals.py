"""The signals that ask a daemon to stop, for its poll."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final

from forebay.sockets import waking_signals

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_signals() -> Iterator[int]:
    """Has SIGTERM and SIGINT written into a pipe, and yields its reading end for a poll."""
    with waking_signals() as reading_end:
        for number in _NUMBERS:
            signal.signal(number, lambda _number, _frame: None)
        try:
            yield reading_end
        finally:
            # Not as before: one more SIGTERM would end the process in the middle of its clean-up.
            for number in _NUMBERS:
                signal.signal(number, signal.SIG_IGN)


def count_signals(reading_end: int) -> int:
    """Returns how many came since the last time."""
    try:
        return len(os.read(reading_end, 64))
    except BlockingIOError:
        return 0
