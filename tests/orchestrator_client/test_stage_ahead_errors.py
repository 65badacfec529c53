"""Errors in their turn: of the source, of a step and of the caller's own; and what keeps nothing alive."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.wire import UsageError

from .ahead_desk import Desk
from .ahead_plans import BugError, Plan, Staging, steps_of
from .ahead_runs import run
from .virtual_loop import run_virtual


async def _failing(desk: Desk, before: int) -> AsyncIterator[MicroBatch]:
    for number in range(before):
        yield MicroBatch(desk._made(number), ends_step=desk.plans[number].ends_step)
    raise BugError("in the source")


def test_an_error_of_the_source_is_raised_when_all_that_was_pulled_before_is_trained() -> None:
    desk = Desk(steps_of(3, stage_s=4, ready_s=8))
    desk.plans[2] = Plan(ready_s=8)
    found: list[int] = []
    with pytest.raises(BugError, match="in the source"):
        run(desk, found, _failing(desk, 3))
    assert found == [0, 1, 2]
    assert desk.resets == 0, "nothing was staged any more"


def test_an_error_of_the_source_between_two_steps_is_raised_where_the_next_step_is_asked_for() -> None:
    desk = Desk(steps_of(2))

    async def main() -> None:
        async with StageAhead(desk, _failing(desk, 2), desk.settings) as ahead:
            step = await anext(ahead)
            assert [trained.value async for trained in step] == [0, 1]
            assert desk.numbers("pulled") == [0, 1]
            with pytest.raises(BugError, match="in the source"):
                await anext(ahead)

    run_virtual(main())


def test_an_error_of_the_source_before_anything_is_raised_at_once() -> None:
    desk = Desk([])
    with pytest.raises(BugError, match="in the source"):
        run(desk, [], _failing(desk, 0))
    assert desk.resets == 0


def test_after_an_error_of_the_source_the_next_steps_staged_ones_are_still_trained() -> None:
    desk = Desk([*steps_of(1, ready_s=64), Plan(), Plan()])
    found: list[int] = []
    with pytest.raises(BugError, match="in the source"):
        run(desk, found, _failing(desk, 3))
    assert found == [0, 1, 2]


def test_a_repeated_key_is_an_error_of_the_source_that_names_it() -> None:
    desk = Desk([Plan(key="a"), Plan(key="b"), Plan(key="a")])
    found: list[int] = []
    with pytest.raises(UsageError, match="repeats a key at place 2 of step 0; got a; limit a key of its own"):
        run(desk, found)
    assert found == [0, 1]


def test_something_else_than_a_micro_batch_is_an_error_of_the_source() -> None:
    async def source() -> AsyncIterator[Any]:
        yield MicroBatch(desk._made(0))
        yield {"tokens": 1}

    desk = Desk([Plan()])
    found: list[int] = []
    with pytest.raises(UsageError, match="the source yielded something else; got dict; limit MicroBatch"):
        run(desk, found, source())
    assert found == [0]


def test_an_error_of_a_step_is_raised_from_the_step_and_nothing_begins_any_more() -> None:
    desk = Desk([*steps_of(1, ready_s=4), Plan(ready_s=4, step_error="in the step"), *steps_of(4)])
    found: list[int] = []
    with pytest.raises(BugError, match="in the step"):
        run(desk, found)
    assert found == [0]
    assert desk.numbers("train") == [0, 1]
    assert desk.resets == 1


def test_an_error_of_a_step_comes_after_the_results_before_it() -> None:
    desk = Desk([Plan(), Plan(), Plan(step_error="in the step")])

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                await asyncio.sleep(64)
                assert [(await anext(step)).value for _ in range(2)] == [0, 1]
                with pytest.raises(BugError, match="in the step"):
                    await anext(step)

    with pytest.raises(UsageError, match="loop has failed: BugError: in the step; leave its context"):
        run_virtual(main())


def test_after_an_error_loop_and_step_are_of_no_use() -> None:
    desk = Desk([Plan(step_error="in the step"), Plan()])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            with pytest.raises(BugError):
                await anext(step)
            for asked in (ahead, step):
                with pytest.raises(UsageError, match="has failed"):
                    await anext(asked)

    run_virtual(main())
    assert desk.resets == 1


def test_an_error_of_the_callers_own_resets_what_is_staged_for_the_next_step() -> None:
    desk = Desk(steps_of(1, 2))

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                async for _ in step:
                    pass
                await asyncio.sleep(1)
                raise BugError("in the update")

    with pytest.raises(BugError, match="in the update"):
        run_virtual(main())
    assert desk.resets == 1
    assert desk.staged_keys == []


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed in the test is so because nobody has it any more."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "plan",
    [Plan(step_error="x"), Plan(step_error="x", staging=Staging.REFUSED), Plan(staging=Staging.BUG)],
    ids=["staged step", "inline step", "staging"],
)
def test_an_error_that_was_dropped_keeps_no_payload_alive(plan: Plan) -> None:
    desk = Desk([Plan(), plan, *steps_of(3)])

    async def main() -> None:
        with contextlib.suppress(BugError):
            await desk.drain([])
        assert desk.live == []

    run_virtual(main())
    assert desk.resets == 1


@pytest.mark.usefixtures("no_collector")
def test_an_error_of_the_source_that_was_dropped_is_freed() -> None:
    errors: list[weakref.ref[BaseException]] = []

    async def source(desk: Desk) -> AsyncIterator[MicroBatch]:
        yield MicroBatch(desk._made(0))
        error = BugError("in the source")
        errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    async def main() -> None:
        desk = Desk([Plan()])
        with contextlib.suppress(BugError):
            await desk.drain([], StageAhead(desk, source(desk), desk.settings))
        assert [error() for error in errors] == [None]

    run_virtual(main())
