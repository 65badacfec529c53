"""Engines that a test can look into, and what stages for them and never waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from forebay.trainer import Declined, JaxTransfer, Queued, StagedEngine, StagingQueue, TrainerSettings

from .device_arrays import number_of
from .waiting import WAIT_S, see

CAPS = pytest.mark.parametrize("cap", [1, 2, 0])


def staged(
    engine: Any, mode: str = "stage", cap: int = 1, *, transfer: JaxTransfer | None = None, shardings: Any = None
) -> StagedEngine:
    settings = TrainerSettings(stage_batch=mode, max_device_batches=cap)
    return ImpatientEngine(engine, StagingQueue(transfer or JaxTransfer(shardings), settings=settings))


class ImpatientEngine(StagedEngine):
    """Waits no longer than a test does, so that a wait without an end is an error instead of a hang."""

    def stage_batch(self, payload: Any, *, key: str, timeout_s: float = WAIT_S) -> Queued | Declined:
        return super().stage_batch(payload, key=key, timeout_s=timeout_s)

    def fwd_bwd(
        self, payload: Any = None, stage_key: str | None = None, *, stage_timeout_s: float = WAIT_S, **options: Any
    ) -> Any:
        return super().fwd_bwd(payload, stage_key, stage_timeout_s=stage_timeout_s, **options)

    def update(self, *arguments: Any, stage_timeout_s: float = WAIT_S, **options: Any) -> Any:
        return super().update(*arguments, stage_timeout_s=stage_timeout_s, **options)


def wait_for_on_device(queue: StagingQueue, count: int) -> None:
    """Waits until this many entries wait on the device."""
    changed = queue._parts.changed
    with changed:
        assert changed.wait_for(lambda: queue._parts.books.statistics().on_device == count, WAIT_S), queue


def wait_until_wanted(wrapped: StagedEngine, key: str) -> None:
    parts = wrapped.queue._parts
    see(parts, lambda: key in parts.books._wanted)


class HandWork:
    """Outputs that are ready when a test says so; until then the device keeps the inputs.

    Args:
        inputs: What the work reads.
        when_waited_for: Called by whoever waits for it; then it is finished. Else the test finishes it.
    """

    nbytes = 4

    def __init__(self, inputs: Any = None, when_waited_for: Callable[[], None] | None = None) -> None:
        self.waited_for = threading.Event()
        self._inputs = inputs
        self._when_waited_for = when_waited_for
        self._done = threading.Event()

    def finish(self) -> None:
        self._inputs = None
        self._done.set()

    def is_ready(self) -> bool:
        return self._done.is_set()

    def block_until_ready(self) -> HandWork:
        self.waited_for.set()
        if self._when_waited_for is not None:
            self._when_waited_for()
            self.finish()
        assert self._done.wait(WAIT_S), "nobody finished the work that is waited for"
        return self


class HandEngine:
    """An engine that does what a test wants.

    Args:
        by_hand: Whether its outputs are `HandWork`; else it puts out nothing.
        inside: Called with the batch inside of `fwd_bwd`.
        when_waited_for: See `HandWork`.

    Attributes:
        trained: The numbers of the micro-batches that it got.
        options: The options of each call.
        work: Its outputs, oldest first.
    """

    def __init__(
        self,
        *,
        by_hand: bool = False,
        inside: Callable[[Any], None] | None = None,
        when_waited_for: Callable[[], None] | None = None,
    ) -> None:
        self.inside = inside
        self.trained: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.work: list[HandWork] = []
        self._by_hand = by_hand
        self._when_waited_for = when_waited_for

    def fwd_bwd(self, batch: Any, **options: Any) -> HandWork | None:
        self.options.append(options)
        self.trained.append(number_of(batch))
        if self.inside is not None:
            self.inside(batch)
        return self._put_out(batch)

    def update(self, **options: Any) -> HandWork | None:
        self.options.append(options)
        return self._put_out(None)

    def _put_out(self, inputs: Any) -> HandWork | None:
        if not self._by_hand:
            return None
        self.work.append(HandWork(inputs, self._when_waited_for))
        return self.work[-1]


class Output:
    """What looks like a device array to a queue.

    Args:
        nbytes: Its size.
        error: What waiting for it raises.
    """

    def __init__(self, nbytes: int, *, error: Exception | None = None) -> None:
        self.nbytes = nbytes
        self.ready = False
        self.waits = 0
        self._error = error

    def is_ready(self) -> bool:
        return self.ready

    def block_until_ready(self) -> Output:
        self.waits += 1
        if self._error is not None:
            raise self._error
        self.ready = True
        return self
