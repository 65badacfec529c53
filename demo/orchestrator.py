"""The orchestrator process: makes the micro-batches and has the trainer work on them, staged ahead.

Run as `python -m forebay.demo.orchestrator SETTINGS ENDPOINTS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TypeVar

import numpy as np

from forebay.orchestrator_client import (
    MicroBatch,
    OrchestratorSettings,
    StageAhead,
    SteadyPace,
    TrainerHandle,
    TrainStep,
)
from forebay.wire import Array

from .batches import micro_batches
from .child import run_child
from .endpoints import Endpoints
from .events import PulledBatch, TrainedBatch, TrainedStep, emit
from .micro_batch import TrainExample
from .settings import FINISH, QUEUE, WAIT_S, DemoSettings

T = TypeVar("T")


async def train_all(endpoints: Endpoints, settings: DemoSettings) -> None:
    """Trains the run's micro-batches, step by step.

    Raises:
        ForebayError: A step or an update failed, or the trainer is gone. What could not be staged goes inline.
    """
    made = made_ahead(micro_batches(settings))
    async with _handle(endpoints, settings) as trainer:
        before = await _queue_counts(trainer)
        async with StageAhead(trainer, source(made, settings.micro_batches), OrchestratorSettings()) as ahead:
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


async def source(
    made: AsyncGenerator[tuple[str, TrainExample[Array]], None], a_step: int
) -> AsyncIterator[MicroBatch]:
    """Yields micro-batches for the loop, and reports them.

    Args:
        made: Key and micro-batch each.
        a_step: How many are a step.
    """
    number = 0
    async with contextlib.aclosing(made):
        async for key, example in made:
            number += 1
            emit(PulledBatch(key=key, payload_bytes=_array_bytes(example)))
            yield MicroBatch(example, key=key, ends_step=number % a_step == 0)


def _array_bytes(example: TrainExample[Array]) -> int:
    values = (getattr(example, field.name) for field in dataclasses.fields(example))
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def made_ahead(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Yields each item while the next one is made in a thread, as rollouts go on elsewhere; begins at once."""
    return _made_ahead(items, asyncio.create_task(asyncio.to_thread(next, items, None)))


async def _made_ahead(items: Iterator[T], upcoming: asyncio.Task[T | None]) -> AsyncGenerator[T, None]:
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
            yield item
    finally:
        upcoming.cancel()


def main(settings: DemoSettings, endpoints: Endpoints) -> None:
    """Runs the orchestrator to its end."""
    asyncio.run(train_all(endpoints, settings))


if __name__ == "__main__":
    run_child(main)
