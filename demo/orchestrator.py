"""The orchestrator process: makes the micro-batches and has the trainer work on them, staged ahead.

Run as `python -m forebay.demo.orchestrator ENDPOINTS SETTINGS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, TypeVar

import numpy as np

from forebay.orchestrator_client import (
    MicroBatch,
    OrchestratorSettings,
    SteadyPace,
    StageAhead,
    TrainerHandle,
    TrainStep,
)

from .batches import micro_batches
from .child import run_child
from .endpoints import Endpoints
from .events import PulledBatch, TrainedBatch, TrainedStep, emit
from .settings import FINISH, QUEUE, WAIT_S, DemoSettings

T = TypeVar("T")


async def train_all(endpoints: Endpoints, settings: DemoSettings) -> None:
    """Trains the run's micro-batches, step by step.

    Raises:
        ForebayError: A step or an update failed, or the trainer is gone. What could not be staged goes inline.
    """
    async with _handle(endpoints, settings) as trainer:
        before = await _queue_counts(trainer)
        async with StageAhead(trainer, source(settings), OrchestratorSettings()) as ahead:
            async for step in ahead:
                async for trained in step:
                    loss = float(trained.value)
                    emit(TrainedBatch(key=trained.key, step=step.number, loss=loss, source=trained.source))
                await trainer.update(timeout_s=WAIT_S)
                counts = await _queue_counts(trainer)
                emit(_report(step, {name: counts[name] - before[name] for name in counts}))
                before = counts
        await trainer.call(FINISH, timeout_s=WAIT_S)


def _handle(endpoints: Endpoints, settings: DemoSettings) -> TrainerHandle:
    rate = settings.wire_bytes_per_s
    return TrainerHandle(
        endpoints.worker,
        control_endpoint=endpoints.control,
        queue=QUEUE,
        # It is not there before it has compiled; whoever started both of them sees when it has died.
        timeout_s=WAIT_S,
        silence_s=WAIT_S,
        pace=SteadyPace(rate) if rate else None,
    )


async def _queue_counts(trainer: TrainerHandle) -> dict[str, float]:
    counts = (await trainer.metrics())["queue"]
    return {f"queue/{name}": float(counts[name]) for name in ("promotions", "transfer_s")}


def _report(step: TrainStep, queue_counts: dict[str, float]) -> TrainedStep:
    return TrainedStep(
        number=step.number,
        began_at=step.micro_batches[0].free_at,
        metrics=step.metrics() | queue_counts,
        fallbacks=step.fallbacks,
        spans=step.spans,
    )


async def source(settings: DemoSettings) -> AsyncIterator[MicroBatch]:
    """Yields the run's micro-batches."""
    async with contextlib.aclosing(made_ahead(micro_batches(settings))) as made:
        number = 0
        async for key, example in made:
            number += 1
            emit(PulledBatch(key=key, payload_bytes=_array_bytes(example)))
            yield MicroBatch(example, key=key, ends_step=number % settings.micro_batches == 0)


def _array_bytes(example: Any) -> int:
    values = (getattr(example, field.name) for field in dataclasses.fields(example))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


async def made_ahead(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Yields each item while the next one is made in a thread, as rollouts go on elsewhere."""
    upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
            yield item
    finally:
        upcoming.cancel()


def main(endpoints: Endpoints, settings: DemoSettings) -> None:
    """Runs the orchestrator to its end."""
    asyncio.run(train_all(endpoints, settings))


if __name__ == "__main__":
    run_child(main)
