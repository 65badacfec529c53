"""Warnings that are said once in the life of a process, and counted ever after."""

from __future__ import annotations

import logging
import threading

from .quiet_log import tell


class OneWarning:
    """A warning of which one is enough.

    Args:
        text: A format for the log.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._was_given = False

    def give(self, *values: object) -> None:
        """Logs it, the first time."""
        with self._lock:
            if self._was_given:
                return
            self._was_given = True
        tell(logging.WARNING, self._text, *values)
