"""Warnings that are said once in the life of a process, and counted ever after."""

from __future__ import annotations

import logging
import threading

from forebay.sockets import tell
from forebay.wire import Event

log = logging.getLogger("forebay.trainer")


class OneWarning:
    """A warning of which one is enough."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._was_given = False

    def give(self, event: Event, /, **fields: object) -> None:
        """Logs it, the first time.

        Args:
            event: What happened.
            **fields: As `forebay.sockets.tell` takes them.
        """
        with self._lock:
            if self._was_given:
                return
            self._was_given = True
        tell(log, logging.WARNING, event, **fields)
