"""Keeps a fork out of the middle of a log line.

A child that is forked while another thread writes inherits the locks that this thread holds, that of the buffer of
`sys.stderr` among them, and nobody who will release them: it would hang at its exit, when the buffer is flushed.
`logging` renews its own locks in a child; that one nobody renews.
"""

from __future__ import annotations

import os
import threading
from typing import Final

_PATIENCE_S: Final = 1.0
"""Seconds that a fork waits: whoever writes to a pipe that nobody reads must not hold up a fork for ever."""


class ForkGuard:
    """Entered by those who write; a fork by another thread waits until they have left. Safe from any thread.

    Several may be inside at once: a user's handler or filter may take locks of its own, and one lock around all of
    them could close a circle.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: list[int] = []
        os.register_at_fork(
            before=self._hold_up, after_in_parent=self._go_on, after_in_child=self._leave_others_behind
        )

    def __enter__(self) -> None:
        with self._changed:
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside.remove(threading.get_ident())
            self._changed.notify_all()

    def _hold_up(self) -> None:
        self._changed.acquire()  # nobody enters before the fork is over
        self._changed.wait_for(lambda: not self._others(), _PATIENCE_S)

    def _go_on(self) -> None:
        self._changed.release()

    def _leave_others_behind(self) -> None:
        others = self._others()
        self._changed = threading.Condition()
        self._inside = [one for one in self._inside if one not in others]

    def _others(self) -> set[int]:
        return {*self._inside} - {threading.get_ident()}
