"""Runs of a loop over a made-up trainer: to the end, into an error, and into a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.orchestrator_client.step_report import TrainStep

from .ahead_desk import Desk
from .virtual_loop import now, run_virtual


async def train_all(desk: Desk, loop: StageAhead) -> list[TrainStep]:
    """Trains everything, checks that each is trained once, in order, and returns the steps."""
    steps = []
    async with loop as ahead:
        async for step in ahead:
            steps.append(step)
            async for trained in step:
                assert desk.applied[trained.value] == (trained.key, trained.value)
            await desk.update()
    assert [number for _, number in desk.applied] == list(range(len(desk.plans)))
    assert len({key for key, _ in desk.applied}) == len(desk.plans)
    assert desk.resets == 0
    assert desk.under_way == []
    return steps


def run(desk: Desk, found: list[Any], source: AsyncIterator[Any] | None = None) -> None:
    """Trains everything, and checks that nothing is left under way, however that ends."""

    async def main() -> None:
        loop = None if source is None else StageAhead(desk, source, desk.settings)
        try:
            await desk.drain(found, loop)
        finally:
            assert desk.under_way == []
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def cancelled_after(desk: Desk, seconds: float, *, again_after: float | None = None) -> float:
    """Cancels a run, and returns when it had ended."""

    async def main() -> float:
        task = asyncio.create_task(desk.drain([]))
        await asyncio.sleep(seconds)
        task.cancel()
        if again_after is not None:
            await asyncio.sleep(again_after)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert desk.under_way == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return now()

    return run_virtual(main())
