"""The orchestrator process: makes the micro-batches and stages them in order.

Run as `python -m forebay.demo.orchestrator CONTROL_ENDPOINT SETTINGS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from forebay.orchestrator_client import Refusal, StagingClient
from forebay.wire import RefusedError

from .batches import key_of, micro_batches
from .child import run_child
from .events import ConsumedBatch, StagedBatch, emit
from .settings import QUEUE, WAIT_S, DemoSettings

T = TypeVar("T")


async def stage_all(endpoint: str, settings: DemoSettings) -> None:
    """Stages the run's micro-batches and waits until the last step's are consumed.

    Raises:
        RefusedError: The daemon refused one; a demonstration has no fallback.
        MicroBatchGoneError: One will never be consumed.
    """
    async with StagingClient(endpoint) as client:
        async for key, example in made_ahead(micro_batches(settings)):
            outcome = await client.stage(example, key=key, queue=QUEUE, timeout_s=WAIT_S)
            if isinstance(outcome, Refusal):
                raise RefusedError(outcome.code, f"{key}: {outcome.words}")
            emit(StagedBatch(key=key, payload_bytes=outcome.payload_bytes, stage_s=outcome.seconds))
        for index in range(settings.micro_batches):
            key = key_of(settings.steps - 1, index)
            await client.wait(key, queue=QUEUE, until="consumed", timeout_s=WAIT_S)
            emit(ConsumedBatch(key=key))


async def made_ahead(items: Iterator[T]) -> AsyncIterator[T]:
    """Yields each item while the next one is made in a thread, as rollouts go on elsewhere."""
    upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(asyncio.to_thread(next, items, None))
            yield item
    finally:
        upcoming.cancel()


def main(endpoint: str, settings: DemoSettings) -> None:
    """Runs the orchestrator to its end."""
    asyncio.run(stage_all(endpoint, settings))


if __name__ == "__main__":
    run_child(main)
