"""Slow and blocking things beside the loop: growing slots, and waiting for trainers' locks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from forebay.shm import SlotFile, wait_until_free
from forebay.sockets import Mailbox

_CLOSE_S = 60.0
_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0


class SlotGrower:
    """Grows slot files one after another on a thread of its own.

    Args:
        mailbox: Where outcomes are posted.
        grown: Called on the loop with a slot that has grown.
        failed: Called on the loop with a slot that could not grow, and why.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        grown: Callable[[SlotFile], None],
        failed: Callable[[SlotFile, str], None],
    ) -> None:
        self._mailbox = mailbox
        self._grown = grown
        self._failed = failed
        self._work: queue.SimpleQueue[tuple[SlotFile, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="slot-grower", daemon=True)
        self._thread.start()

    def grow(self, file: SlotFile, file_bytes: int) -> None:
        """Grows a file to a size, later."""
        self._work.put((file, file_bytes))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            file, file_bytes = work
            try:
                file.reserve(file_bytes)
            except Exception as error:  # noqa: BLE001 - a thread that dies here would strand every later offer
                words = str(error)
                self._mailbox.post(lambda file=file, words=words: self._failed(file, words))  # type: ignore[misc]
            else:
                self._mailbox.post(lambda file=file: self._grown(file))  # type: ignore[misc]

    def close(self) -> None:
        """Ends the thread once the growth under way is done."""
        self._work.put(None)
        self._thread.join(_CLOSE_S)


def watch_lock(
    path: Path, mailbox: Mailbox, freed: Callable[[], None], unwatched: Callable[[OSError], None]
) -> None:
    """Posts `freed` when the kernel says that nobody holds a lock any more.

    One sleeping thread a trainer, and no polling. The thread cannot be interrupted; it ends with the process.

    Args:
        path: The lock.
        mailbox: Where both are posted.
        freed: Called on the loop, once.
        unwatched: Called on the loop each time that the lock cannot be looked at.
    """

    def wait() -> None:
        retry_s = _RETRY_S
        while True:
            try:
                wait_until_free(path)
            except OSError as error:
                # Too many open files, say, or a mode that keeps this user out since the group was changed. Neither
                # tells whether its holder still reads its slots, so they stay with it.
                mailbox.post(lambda error=error: unwatched(error))  # type: ignore[misc]
                time.sleep(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
            else:
                mailbox.post(freed)
                return

    threading.Thread(target=wait, name=f"lock-{path.name}", daemon=True).start()
