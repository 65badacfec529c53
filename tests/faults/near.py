"""A trainer on a thread of this process, for tests in which somebody else fails: it costs no start of JAX."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from ..end_to_end import party
from ..end_to_end.processes import EVENT_S, words_of


class NearTrainer:
    """Does what the trainer's process does, and is asked and told in the same way.

    Args:
        endpoint: The daemon's trainer endpoint.
        options: As for the process.
    """

    def __init__(self, endpoint: str, **options: Any) -> None:
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._goes = threading.Semaphore(0)
        self._options = party.parse(words_of("trainer", endpoint, **options))
        self._thread = threading.Thread(target=self._run, name="near trainer")
        self._thread.start()

    def _run(self) -> None:
        try:
            party.train(self._options, hold=self._hold, say=self._say)
        except Exception as error:  # noqa: BLE001 - whoever waits for an event tells it
            self._say(event="failed", error=repr(error))

    def _say(self, **event: Any) -> None:
        self._events.put(event)

    def _hold(self) -> None:
        assert self._goes.acquire(timeout=2 * EVENT_S), "nobody let the trainer go on"

    def until(self, event: str, **fields: Any) -> dict[str, Any]:
        """Waits for an event of this name with these fields; passes over others."""
        while True:
            try:
                found = self._events.get(timeout=EVENT_S)
            except queue.Empty:
                pytest.fail(f"the trainer said no {event!r} {fields} within {EVENT_S} s")
            if found["event"] == event and fields.items() <= found.items():
                return found
            if found["event"] in ("failed", "done"):
                pytest.fail(f"the trainer ended before {event!r}: {found}")

    def go_on(self) -> None:
        """Lets it go on, once."""
        self._goes.release()

    def finish(self) -> None:
        """Waits for its end."""
        self.until("done")
        self._thread.join(EVENT_S)

    def close(self) -> None:
        """Lets go of it, whatever it does."""
        self._goes.release(100)
        self._thread.join(3 * EVENT_S)
        assert not self._thread.is_alive(), "the near trainer did not end"
