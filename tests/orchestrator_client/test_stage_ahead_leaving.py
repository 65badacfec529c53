"""How a loop is left: what is reset, the reset's own troubles, and the source's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.wire import BrokenError, UsageError

from .ahead_desk import Desk
from .ahead_plans import BugError, Plan, Staging, steps_of
from .ahead_runs import cancelled_after, run
from .virtual_loop import run_virtual

# --- leaving ---


def test_leaving_early_resets_what_is_staged() -> None:
    desk = Desk(steps_of(4, ready_s=4))

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                async for _ in step:
                    break
                break
        assert desk.under_way == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
    assert desk.resets == 1
    assert desk.staged_keys == []
    assert desk.live == []


@pytest.mark.parametrize("max_staged", [0, 2])
def test_leaving_before_anything_is_with_the_trainer_resets_nothing(max_staged: int) -> None:
    desk = Desk(steps_of(4, pull_s=0 if max_staged == 0 else 8), max_staged=max_staged)

    async def main() -> None:
        async with desk.loop():
            await asyncio.sleep(4)

    run_virtual(main())
    assert desk.resets == 0


def test_leaving_at_once_begins_nothing() -> None:
    desk = Desk(steps_of(4))

    async def main() -> None:
        async with desk.loop():
            pass
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
    assert desk.events == []


def test_an_inline_step_that_was_cancelled_is_reset() -> None:
    desk = Desk(steps_of(4, send_s=8), max_staged=0)
    cancelled_after(desk, 4)
    assert desk.resets == 1


def test_a_fallback_whose_bytes_may_still_land_is_reset() -> None:
    desk = Desk([Plan(ready_s=64), Plan(key="b", staging=Staging.LATE, stage_s=64, land_s=8)], timeout_s=4)
    cancelled_after(desk, 6)
    assert desk.resets == 1
    assert desk.staged_keys == []


def test_who_waits_in_another_task_when_the_context_is_left_hears_of_it() -> None:
    desk = Desk([Plan(pull_s=1000)])

    async def main() -> None:
        async with desk.loop() as ahead:
            waiting = asyncio.create_task(anext(ahead))
            await asyncio.sleep(1)
        with pytest.raises(UsageError, match="outside its context"):
            await waiting

    run_virtual(main())


# --- the reset's own troubles ---


@pytest.mark.parametrize(
    ("seconds", "error", "words"),
    [
        (1000.0, None, "the reset of what is staged took over 10 s"),
        (
            1.0,
            BrokenError("the daemon stopped"),
            "the reset of what is staged failed: BrokenError: the daemon stopped",
        ),
        (1.0, BugError("in the reset"), "the reset of what is staged failed: BugError: in the reset"),
    ],
)
def test_a_reset_that_fails_or_hangs_is_a_warning_and_a_note_on_the_error_under_way(
    seconds: float, error: Exception | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="forebay.client")
    desk = Desk([Plan(step_error="first")])
    desk.reset_s, desk.reset_error = seconds, error
    with pytest.raises(BugError, match="first") as caught:
        run(desk, [])
    assert caught.value.__notes__ == [f"stage-ahead loop: {words}"]
    assert [record.getMessage() for record in caplog.records] == [f"stage_ahead_close trouble={words}"]
    assert desk.resets == 1


def test_a_reset_that_fails_when_a_loop_is_left_without_an_error_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="forebay.client")
    desk = Desk(steps_of(2))
    desk.reset_error = BrokenError("the daemon stopped")

    async def main() -> None:
        async with desk.loop() as ahead:
            await anext(ahead)

    run_virtual(main())
    assert len(caplog.records) == 1


# --- the source's end ---


class Watched:
    """A source that tells how it ended."""

    def __init__(self, at_end: Callable[[], Awaitable[None]] | None = None) -> None:
        self.ended: list[str] = []
        self._at_end = at_end

    async def source(self, desk: Desk) -> AsyncIterator[MicroBatch]:
        try:
            for number, plan in enumerate(desk.plans):
                await asyncio.sleep(plan.pull_s)
                yield MicroBatch(desk._made(number))
            self.ended.append("at its end")
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        finally:
            if self._at_end is not None:
                await self._at_end()


async def leave_after(desk: Desk, seconds: float, watched: Watched) -> None:
    async with StageAhead(desk, watched.source(desk), desk.settings):
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(("pull_s", "word"), [(0.0, "GeneratorExit"), (64.0, "CancelledError")])
def test_a_generator_is_closed_with_the_loop(pull_s: float, word: str) -> None:
    watched = Watched()
    run_virtual(leave_after(Desk(steps_of(9, pull_s=pull_s)), 4, watched))
    assert watched.ended == [word]


def test_a_generator_that_has_ended_hears_of_nothing() -> None:
    watched = Watched()
    desk = Desk(steps_of(2))
    found: list[int] = []

    async def main() -> None:
        await desk.drain(found, StageAhead(desk, watched.source(desk), desk.settings))

    run_virtual(main())
    assert found == [0, 1]
    assert watched.ended == ["at its end"]


async def _fails() -> None:
    raise BugError("in the source's end")


async def _hangs() -> None:
    await asyncio.sleep(1000)


@pytest.mark.parametrize(
    ("at_end", "words"),
    [
        (_fails, "the end of the source failed: BugError: in the source's end"),
        (_hangs, "the end of the source took over 10 s"),
    ],
)
def test_a_generators_end_that_fails_or_hangs_is_a_warning(
    at_end: Callable[[], Awaitable[None]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="forebay.client")
    desk = Desk(steps_of(9))
    run_virtual(leave_after(desk, 4, Watched(at_end)))
    assert [record.getMessage() for record in caplog.records] == [f"stage_ahead_close trouble={words}"]
    assert desk.resets == 1
