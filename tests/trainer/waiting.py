"""How tests wait: for a queue's promoter, for a state, for a call on another thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from forebay.trainer import StagingQueue
from forebay.trainer.entry_states import EntryState
from forebay.trainer.queue_books import Work
from forebay.trainer.queue_parts import QueueParts

T = TypeVar("T")
WAIT_S = 20.0
_LOOK_S = 0.05


def see(parts: QueueParts, is_so: Callable[[], bool]) -> None:
    """Waits until something is so in a queue; looks by itself as well, as it tells nobody who began to wait."""
    deadline = time.monotonic() + WAIT_S
    with parts.changed:
        while not parts.changed.wait_for(is_so, _LOOK_S):
            assert time.monotonic() < deadline, repr(parts)


class Watch:
    """Waits for what happens in a queue.

    Args:
        queue: Which one; before it is used.
    """

    def __init__(self, queue: StagingQueue) -> None:
        self._parts = queue._parts
        # Not the queue's own lock: to tell of a look by that would wake those whom the queue forgot to tell.
        self._looked = threading.Condition()
        self._found_work: list[bool] = []
        self._next_work = self._parts.books.next_work
        self._parts.books.next_work = self._look  # type: ignore[method-assign]

    def _look(self) -> Work | None:
        work = self._next_work()
        with self._looked:
            self._found_work.append(work is not None)
            self._looked.notify_all()
        return work

    def _wake(self) -> int:
        """Has the promoter look once more; returns how often it had looked before."""
        with self._parts.changed:
            before = len(self._found_work)
            self._parts.promoter.wake()
        return before

    def settle(self) -> None:
        """Has the promoter look once more, and waits until it has found nothing to do."""
        before = self._wake()
        with self._looked:
            assert self._looked.wait_for(lambda: False in self._found_work[before:], WAIT_S), repr(self._parts)

    def has_work(self) -> bool:
        """Has the promoter, which must be idle, look for work; returns whether there was any."""
        before = self._wake()
        with self._looked:
            assert self._looked.wait_for(lambda: len(self._found_work) > before, WAIT_S), repr(self._parts)
            return self._found_work[before]

    def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until something is so in the queue."""
        see(self._parts, is_so)

    def until_state(self, key: str, state: EntryState) -> None:
        """Waits until a queued entry is in a state."""
        books = self._parts.books
        self.until(lambda: (entry := books.find(key)) is not None and entry.state is state)

    def until_wanted(self, key: str | None, by: int = 1) -> None:
        """Waits until some threads wait for an entry."""
        books = self._parts.books
        self.until(lambda: (books._takers if key is None else books._wanted[key]) == by)


class Call(Generic[T]):
    """A call on a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._function = function
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._function())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self._future.set_exception(error)

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def result(self) -> T:
        return self._future.result(WAIT_S)

    def error(self) -> BaseException | None:
        return self._future.exception(WAIT_S)
