"""A log that does not grow by each thing that a peer causes."""

from __future__ import annotations

import logging
import time

from forebay.wire import Event, LogLimit

from .telling import tell


class LimitedLog:
    """Writes the first few of each event that peers can cause at will, see `LogLimit`; for one thread.

    What was left out is told with the next event after the window's end, as nothing here waits for that.

    Args:
        log: Where to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._limit = LogLimit()

    def tell(self, level: int, event: Event, /, **fields: object) -> None:
        """Writes an event, or counts it.

        Args:
            level: As in `logging`.
            event: What happened; a field `code` makes kinds of it that are counted apart.
            **fields: As `tell` takes them.
        """
        now = time.monotonic()
        for kind, count in self._limit.take_left_out(now):
            tell(self._log, logging.WARNING, Event.LEFT_OUT, kind=kind, count=count)
        if self._limit.admits(kind_of(event, fields), now):
            tell(self._log, level, event, **fields)


def kind_of(event: Event, fields: dict[str, object]) -> str:
    """Returns what a `LogLimit` counts an event as: its word, and its code if it has one."""
    return f"{event} {fields.get('code', '')}".rstrip()
