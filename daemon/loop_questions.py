"""Questions from other threads to the loop, which alone may look into the ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from forebay.sockets import Mailbox
from forebay.wire import WaitTimeoutError

T = TypeVar("T")

_ANSWER_S: Final = 1.0
_MOST: Final = 16
"""Questions that may lie in the mailbox: a loop that answers nothing must not gather them."""


class LoopQuestions:
    """Has the loop answer questions. Safe from any thread but the loop's own.

    Args:
        mailbox: The loop's.
        answer_s: Seconds that an answer may take.
    """

    def __init__(self, mailbox: Mailbox, *, answer_s: float = _ANSWER_S) -> None:
        self._mailbox = mailbox
        self._answer_s = answer_s
        self._room = threading.BoundedSemaphore(_MOST)

    def ask(self, question: Callable[[], T]) -> T:
        """Returns what a function returns that the loop calls on its own thread; raises what it raises.

        Raises:
            WaitTimeoutError: The loop did not answer in time.
        """
        deadline = time.monotonic() + self._answer_s
        if not self._room.acquire(timeout=self._answer_s):
            raise self._silence()
        future: Future[T] = Future()

        def answer() -> None:
            self._room.release()
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question())
            except Exception as error:  # noqa: BLE001 - who asked hears of it; it must not end the loop
                future.set_exception(error)

        self._mailbox.post(answer)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()  # whoever hung up is not worth the loop's time
            raise self._silence() from None

    def _silence(self) -> WaitTimeoutError:
        return WaitTimeoutError(f"the daemon's loop did not answer within {self._answer_s:g} s")
