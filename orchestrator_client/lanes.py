"""Lanes: things that go on beside each other, each of which does one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from forebay.wire import BrokenError, words_of

Work = Coroutine[Any, Any, None]


class Lanes:
    """Some lanes of one event loop, each on a task of its own.

    A lane does what it is given until there is nothing, and looks again when it is woken. From the end of one
    thing to the beginning of the next nobody else runs.

    Args:
        broke: Told the error with which a lane ended that was not stopped.
    """

    def __init__(self, broke: Callable[[BaseException], None]) -> None:
        self._broke = broke
        self._lanes: dict[asyncio.Task[None], asyncio.Event] = {}
        self._is_stopping = False

    def start(self, name: str, next_work: Callable[[], Work | None]) -> None:
        """Starts a lane.

        Args:
            name: For people.
            next_work: Returns what the lane does next, or None.
        """
        wake = asyncio.Event()
        lane = asyncio.create_task(self._run(wake, next_work), name=f"forebay {name} lane")
        self._lanes[lane] = wake
        lane.add_done_callback(self._ended)

    def wake(self) -> None:
        """Has every lane look for work."""
        for wake in self._lanes.values():
            wake.set()

    async def stop(self, timeout_s: float) -> list[str]:
        """Cancels what the lanes do, and waits for its end.

        Returns:
            What did not go well, in words.
        """
        self._is_stopping = True
        if not self._lanes:
            return []
        for lane in self._lanes:
            lane.cancel()
        ended, running = await asyncio.wait(self._lanes, timeout=timeout_s)
        errors = [(lane.get_name(), lane.exception()) for lane in ended if not lane.cancelled()]
        troubles = [f"{name} ended with {words_of(error)}" for name, error in errors if error is not None]
        troubles += [f"{lane.get_name()} still runs after {timeout_s:g} s" for lane in running]
        # A cancelled task keeps the frames that it was cancelled in, and with them what they worked on.
        self._lanes.clear()
        return troubles

    async def _run(self, wake: asyncio.Event, next_work: Callable[[], Work | None]) -> None:
        # What is cancelled may end in another way than by the cancellation; the lane must end all the same.
        while not self._is_stopping:
            work = next_work()
            if work is None:
                await wake.wait()
                wake.clear()
            else:
                await work

    def _ended(self, lane: asyncio.Task[None]) -> None:
        error = None if lane.cancelled() else lane.exception()
        if self._is_stopping:
            return
        self._broke(error or BrokenError(f"what the {lane.get_name()} did was cancelled, not by the loop"))
