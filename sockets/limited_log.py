"""A log that does not grow by each thing that a peer causes."""

from __future__ import annotations

import contextlib
import logging
import time

from forebay.wire import LogLimit


class LimitedLog:
    """Writes the first few of each event that peers can cause at will, see `LogLimit`; for one thread.

    What was left out is told with the next event after the window's end, as nothing here waits for that.

    Args:
        log: Where to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._limit = LogLimit()

    def tell(self, level: int, event: str, words: str, *values: object) -> None:
        """Writes an event, or counts it.

        Args:
            level: As in `logging`.
            event: Its name.
            words: A format for the values.
            *values: What goes into it.
        """
        # What a user's handler raises must not end the thread that tells.
        with contextlib.suppress(Exception):
            now = time.monotonic()
            for name, count in self._limit.take_left_out(now):
                self._log.warning("left_out event=%s count=%s", name, count)
            if self._limit.admits(event, now):
                self._log.log(level, f"{event} {words}", *values)
