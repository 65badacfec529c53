"""The signals that ask a daemon to stop, or to read its settings again, for its poll."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final

from forebay.sockets import waking_signals

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_INPUT: Final = 0


@contextlib.contextmanager
def stop_signals() -> Iterator[int]:
    """Has SIGTERM, SIGINT and SIGHUP written into a pipe, and yields its reading end for a poll."""
    with waking_signals() as reading_end:
        for number in _NUMBERS:
            signal.signal(number, lambda _number, _frame: None)
        try:
            yield reading_end
        finally:
            # Not as before: one more SIGTERM would end the process in the middle of its clean-up.
            for number in _NUMBERS:
                signal.signal(number, signal.SIG_IGN)


def take_signals(reading_end: int) -> bytes:
    """Returns the numbers of those that came since the last time, one a byte, in order."""
    try:
        return os.read(reading_end, 64)
    except BlockingIOError:
        return b""


class Terminal:
    """The terminal at which this process was started, if that is its input: its end is told by SIGHUP as well."""

    def __init__(self) -> None:
        self._was_there = os.isatty(_INPUT)

    def is_gone(self) -> bool:
        """Whether it was there and has been closed."""
        return self._was_there and not os.isatty(_INPUT)
