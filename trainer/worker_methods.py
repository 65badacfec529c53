"""The methods of a worker: a staged engine's, and those that its user registers."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from forebay.sockets import tell
from forebay.wire import Event, StepTimes, UsageError, WorkerState, words_of

from .engine import Declined, StagedEngine
from .settings import StageMode
from .staging_queue import check_request
from .step_clock import StepClock
from .trained_keys import TrainedKeys
from .travel import wait_for

log = logging.getLogger("forebay.trainer")

_REMEMBERED_KEYS = 10_000
SERIAL_LANE = ""
"""The lane of all methods that are not concurrent."""


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        name: As it is called by.
        function: Called with the payload, if there is one, and the call's options.
        is_concurrent: Whether it may run beside other methods; never beside itself.
        is_step: Whether it takes a `StepClock` as well, under the name `stage_clock`.
    """

    name: str
    function: Callable[..., Any]
    is_concurrent: bool = False
    is_step: bool = False

    @property
    def lane(self) -> str:
        """Calls of one lane run one after another."""
        return self.name if self.is_concurrent else SERIAL_LANE


class EngineMethods:
    """What a worker offers of its staged engine.

    Args:
        engine: The engine.
        counters: Of the worker's calls.
    """

    def __init__(self, engine: StagedEngine, counters: Mapping[str, int]) -> None:
        self._engine = engine
        self._counters = counters
        self._trained = TrainedKeys(_REMEMBERED_KEYS)
        self._lock = threading.Lock()
        self._failure = ""
        self._device_free_at: float | None = None

    @property
    def state(self) -> WorkerState:
        """Whether a step or an update failed after it had begun, and none has succeeded since, nor a reset."""
        return WorkerState.FAILED if self._failure else WorkerState.READY

    @property
    def is_fed(self) -> bool:
        """Whether the engine's queue takes what a daemon lends."""
        return self._engine.queue.is_fed

    @property
    def failure(self) -> str:
        """Why the state is `failed`."""
        return self._failure

    def methods(self) -> list[Method]:
        """Returns the methods; which are concurrent depends on the mode."""
        overlaps = self._engine.queue.settings.mode is StageMode.STAGE
        found = [
            Method("fwd_bwd", self.fwd_bwd, is_concurrent=overlaps, is_step=True),
            Method("stage_batch", self.stage_batch, is_concurrent=overlaps),
            Method("update", functools.partial(self._hand_over, self._engine.engine.update)),
            # These wait for nothing but the books: a reset must not stand in line behind a long update.
            Method("reset_staged", self.reset_staged, is_concurrent=True),
            Method("metrics", self.metrics, is_concurrent=True),
        ]
        deferred = getattr(self._engine.engine, "apply_deferred_update", None)
        if callable(deferred):
            apply = functools.partial(self._hand_over, deferred)
            found.append(Method("apply_deferred_update", apply, is_concurrent=overlaps))
        return found

    def fwd_bwd(
        self, payload: Any = None, *, stage_key: str | None = None, stage_clock: StepClock, **options: Any
    ) -> Any:
        """Trains a micro-batch, and returns what the engine did once the device is done with it.

        Raises:
            AlreadyTrainedError: A step with its key has succeeded, or runs, whether the key was named or came with
                the next micro-batch in the queue's order; that one is dropped.
            Exception: As `StagedEngine.fwd_bwd`; or what the engine or the device's work failed with.
        """
        check_request(stage_key, 0)
        try:
            with self._trained.training(stage_key) as stage_clock.claim:
                outputs = self._engine.fwd_bwd(payload, stage_key, stage_clock=stage_clock, **options)
                wait_for(outputs)
        except BaseException as error:
            if stage_clock.began_at is not None:
                self._failed("fwd_bwd", error)
            raise
        self._failure = ""
        return outputs

    def times(self, clock: StepClock) -> StepTimes:
        """Returns how a step went whose work the device has just finished."""
        ready_at = time.monotonic()
        assert clock.began_at is not None
        assert clock.ended_at is not None
        with self._lock:
            free_at, self._device_free_at = self._device_free_at, ready_at
        return StepTimes(
            key=clock.key,
            is_staged=clock.is_staged,
            wait_s=clock.began_at - clock.asked_at,
            dispatch_s=clock.ended_at - clock.began_at,
            ready_s=ready_at - clock.began_at,
            idle_s=0.0 if free_at is None else max(0.0, clock.began_at - free_at),
        )

    def _hand_over(self, work: Callable[..., Any], **options: Any) -> Any:
        began = threading.Event()

        def begin() -> Any:
            began.set()
            return work(**options)

        try:
            outputs = self._engine.dispatch(begin)
            wait_for(outputs)
        except BaseException as error:
            if began.is_set():
                self._failed(getattr(work, "__name__", "work"), error)
            raise
        self._failure = ""
        with self._lock:
            self._device_free_at = time.monotonic()
        return outputs

    def _failed(self, what: str, error: BaseException) -> None:
        self._failure = f"{what}: {words_of(error)}"
        with self._lock:
            self._device_free_at = time.monotonic()

    def stage_batch(self, payload: Any = None, *, key: str, **options: Any) -> dict[str, Any]:
        """Stages a payload in process; a failure is an answer, and leaves the worker as it was."""
        try:
            # Else a step with this key could come between the look and the staging, and leave an entry behind.
            with self._trained.lock:
                if key in self._trained:
                    return _declined(key, "a micro-batch with this key was trained already, or is being trained")
                staged = self._engine.stage_batch(payload, key=key, **options)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller goes on without staging
            tell(log, logging.WARNING, Event.STAGE_REFUSED, key=key, reason=words_of(error))
            return _declined(key, words_of(error))
        if isinstance(staged, Declined):
            return _declined(key, staged.reason)
        return {"staged": True, "key": key, "on_device": staged.on_device, "replaced": staged.replaced}

    def look_again(self) -> None:
        """Has steps that wait for a micro-batch look whether somebody still wants them."""
        self._engine.queue.look_again()

    def reset_staged(self) -> None:
        """Drops all that is staged here."""
        self._engine.reset_staged()
        self._failure = ""

    def metrics(self) -> dict[str, Any]:
        """Returns the worker's and its queue's numbers."""
        return {
            "state": str(self.state),
            "failure": self._failure,
            "calls": dict(self._counters),
            "queue": self._engine.queue.statistics.as_dict(),
        }


def registered(methods: Mapping[str, Method], name: str, function: Callable[..., Any], concurrent: bool) -> Method:
    """Makes a method of a user's function.

    Raises:
        UsageError: The name is taken or none, or the function cannot be called.
    """
    if not name.isidentifier():
        raise UsageError("the name of a method", got=name, limit="an identifier")
    if name in methods:
        raise UsageError("the name of a method is taken", got=name, limit=f"none of {', '.join(sorted(methods))}")
    if not callable(function):
        raise UsageError(f"method {name!r} cannot be called", got=type(function).__name__)
    return Method(name, function, is_concurrent=concurrent)


def _declined(key: str, reason: str) -> dict[str, Any]:
    return {"staged": False, "key": key, "reason": reason}
