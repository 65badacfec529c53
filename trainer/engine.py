"""A training engine whose micro-batches are staged ahead."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import jax
import numpy as np

from forebay.sockets import tell
from forebay.wire import ClosedError, Event, UsageError, printable

from .batch import Batch
from .feed import NotStagedError
from .jax_transfer import JaxTransfer
from .settings import StageMode
from .staging_queue import WAIT_S, Queued, StagingQueue
from .step_clock import StepClock

log = logging.getLogger("forebay.trainer")


@runtime_checkable
class Engine(Protocol):
    """What can be staged for."""

    @property
    def fwd_bwd(self) -> Callable[..., Any]:
        """Hands a micro-batch's forward and backward pass to the device; returns what that makes."""

    @property
    def update(self) -> Callable[..., Any]:
        """Hands the optimizer's update to the device; returns what that makes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A payload whose arrays are on the device already; it bypasses the queue.

    Args:
        tree: A pytree of device arrays and static values.

    Raises:
        UsageError: It holds a numpy array.
    """

    tree: Any

    def __post_init__(self) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.tree):
            if isinstance(leaf, np.ndarray | np.generic):
                raise UsageError(
                    f"leaf {jax.tree_util.keystr(path)} of a prepared payload is not on the device",
                    got=type(leaf).__name__,
                    limit="device arrays and static values",
                    remedy="pass the payload itself, or put it on the device first",
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Declined:
    """A payload was not staged; the caller passes it to `fwd_bwd` instead.

    Attributes:
        key: Its key.
        reason: Why not.
    """

    key: str
    reason: str


class StagedEngine:
    """Wraps an engine, so that micro-batches can be staged while it works; a context manager.

    With `TUNIX_STAGE_BATCH=off`, the default, it stages nothing and passes every call on as it is.

    Args:
        engine: What is wrapped. `fwd_bwd` and `update` should return what they have handed to the device: by those
            arrays the queue knows when the device is done. An engine that returns none is taken to have waited.
        queue: Where micro-batches wait; default one of its own, for JAX's default device. It is closed with the
            engine.

    Raises:
        SettingError: The environment has a wrong value.
        UsageError: The engine lacks one of the two methods.
    """

    def __init__(self, engine: Engine, queue: StagingQueue | None = None) -> None:
        if not isinstance(engine, Engine):
            raise UsageError("an engine to stage for", got=type(engine).__name__, limit="fwd_bwd and update")
        self.engine = engine
        self.queue = StagingQueue(JaxTransfer()) if queue is None else queue
        self._is_off = self.queue.settings.mode is StageMode.OFF
        self._is_closed = False
        if self._is_off and self.queue.is_fed:
            words = "a daemon feeds it, but this engine takes nothing from it: set TUNIX_STAGE_BATCH"
            tell(log, logging.WARNING, Event.STAGE_OFF, queue=repr(self.queue), words=words)

    def __repr__(self) -> str:
        return f"StagedEngine({type(self.engine).__name__}, {'off' if self._is_off else self.queue})"

    def stage_batch(self, payload: Any, *, key: str, timeout_s: float = WAIT_S) -> Queued | Declined:
        """Stages a payload for a later `fwd_bwd(stage_key=key)`; see `StagingQueue.stage`.

        Returns:
            `Queued`, or `Declined` with the reason; then nothing was copied.

        Raises:
            As `StagingQueue.stage`.
        """
        self._check_open()
        if self._is_off:
            return Declined(
                key, "staging is off; set TUNIX_STAGE_BATCH, or TrainerSettings, to stage or serialize"
            )
        if isinstance(payload, Prepared):
            return Declined(key, "the payload is on the device already; pass it to fwd_bwd")
        return self.queue.stage(payload, key=key, timeout_s=timeout_s)

    def fwd_bwd(
        self,
        payload: Any = None,
        stage_key: str | None = None,
        *,
        stage_timeout_s: float = WAIT_S,
        stage_clock: StepClock | None = None,
        **options: Any,
    ) -> Any:
        """Runs the engine's `fwd_bwd` on a staged micro-batch or on a payload.

        When the engine returns or raises, the next staged micro-batch is promoted, on another thread.

        Args:
            payload: A pytree of numpy arrays and static values, or a `Prepared` one. Without a `stage_key` it uses
                nothing that is staged.
            stage_key: The staged micro-batch to use. With a payload as well, that one is used where nothing is
                staged under the key, or something that is not the same; see `StagingQueue.put`. With neither,
                the next in the queue's order is used.
            stage_timeout_s: Seconds to wait for the micro-batch.
            stage_clock: Notes when the step's work was handed to the device, and of which micro-batch.
            **options: Passed on.

        Returns:
            What the engine returned.

        Raises:
            As `StagingQueue.take` and `StagingQueue.put`; NotStagedError also if staging is off and no payload
            given, ClosedError also if it is off.
        """
        if isinstance(payload, str):
            raise UsageError(
                "fwd_bwd was given a text as its payload", got=payload, remedy="did you mean stage_key=?"
            )
        self._check_open()
        clock = stage_clock or StepClock()
        if self._is_off:
            return self._fwd_bwd_as_it_is(payload, stage_key, options, clock)
        with self._batch(payload, stage_key, stage_timeout_s, clock) as batch, self._dispatching(stage_timeout_s):
            with clock.dispatching(batch.key, is_staged=batch.is_staged):
                outputs = self.engine.fwd_bwd(batch.tree, **options)
            batch.dispatched(outputs)
        return outputs

    def _batch(self, payload: Any, key: str | None, timeout_s: float, clock: StepClock) -> Batch:
        def given_up() -> bool:
            return clock.is_given_up

        if payload is None:
            return self.queue.take(key, timeout_s=timeout_s, given_up=given_up)
        if isinstance(payload, Prepared):
            return self.queue.bypass(payload.tree, key=key)
        return self.queue.put(payload, key=key, timeout_s=timeout_s, given_up=given_up)

    def _fwd_bwd_as_it_is(self, payload: Any, key: str | None, options: dict[str, Any], clock: StepClock) -> Any:
        if payload is None:
            name = "no micro-batch" if key is None else f"no micro-batch with the key {printable(key)!r}"
            raise NotStagedError(
                f"{name} is staged: staging is off",
                remedy="pass the payload, or set TUNIX_STAGE_BATCH to stage or serialize",
            )
        with clock.dispatching(key or "", is_staged=False):
            return self.engine.fwd_bwd(payload.tree if isinstance(payload, Prepared) else payload, **options)

    def update(self, *arguments: Any, stage_timeout_s: float = WAIT_S, **options: Any) -> Any:
        """Runs the engine's `update`; what is staged goes on meanwhile, except in the mode `serialize`.

        Raises:
            WaitTimeoutError: In `serialize`, the transfer under way took longer than `stage_timeout_s`.
        """
        return self.dispatch(functools.partial(self.engine.update, *arguments, **options), stage_timeout_s)

    def dispatch(self, work: Callable[[], Any], stage_timeout_s: float = WAIT_S) -> Any:
        """Runs what hands any other work to the device, as `update` does.

        Args:
            work: Called once; returns what it has handed over.
            stage_timeout_s: Seconds to wait for the transfer under way, in the mode `serialize`.

        Raises:
            WaitTimeoutError: That took longer.
        """
        if self._is_off:
            return work()
        with self._dispatching(stage_timeout_s):
            outputs = work()
            self.queue.runs(outputs)
        return outputs

    def _dispatching(self, timeout_s: float) -> AbstractContextManager[None]:
        return self.queue.dispatching(timeout_s=timeout_s)

    def reset_staged(self) -> None:
        """Drops all that is queued here, releases its slots, starts the counts anew; see `StagingQueue.reset`."""
        self.queue.reset()

    def close(self) -> None:
        """Closes the queue; see `StagingQueue.close`. After it nothing is staged or trained, in any mode."""
        self._is_closed = True
        self.queue.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the staged engine is closed", remedy="use it inside its with block")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
