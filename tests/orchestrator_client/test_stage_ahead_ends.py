"""How a loop ends: errors in their turn, cancellation, leaving early; what is under way, and the reset."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from forebay.orchestrator_client.results import Refusal
from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.orchestrator_client.trained import Trained
from forebay.wire import BrokenError, UsageError

from .ahead_desk import BugError, Desk, OnSent, Plan, Staging, steps_of
from .virtual_loop import now, run_virtual


def run(desk: Desk, found: list[Any], source: AsyncIterator[Any] | None = None) -> None:
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


# --- errors in their turn ---


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


# --- cancellation ---

MOMENTS = {
    "pull": 2,
    "stage": 6,
    "train": 16,
    "train, the next staged": 28,
}


@pytest.mark.parametrize("seconds", MOMENTS.values(), ids=MOMENTS)
def test_after_a_cancellation_nothing_is_under_way_and_what_was_staged_is_reset(seconds: float) -> None:
    desk = Desk(steps_of(4, pull_s=4, stage_s=8, ready_s=32))
    desk.reset_s = 2
    ended = cancelled_after(desk, seconds)
    was_staged = seconds > 4
    assert desk.resets == was_staged
    assert ended == seconds + 2 * was_staged
    assert desk.staged_keys == []
    assert desk.live == []


def test_a_second_cancellation_does_not_disturb_the_reset() -> None:
    desk = Desk(steps_of(4, ready_s=32))
    desk.reset_s = 8
    assert cancelled_after(desk, 4, again_after=2) == 12
    assert desk.resets == 1
    assert desk.staged_keys == []


def test_a_second_cancellation_does_not_disturb_what_the_caller_does_after_the_first() -> None:
    desk = Desk(steps_of(4, ready_s=32))
    desk.reset_s = 8

    async def body() -> None:
        try:
            await desk.drain([])
        finally:
            await asyncio.sleep(16)

    async def main() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(4)
        task.cancel()
        await asyncio.sleep(4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == 4 + 8 + 16

    run_virtual(main())


def test_the_reset_waits_until_what_was_cancelled_has_ended() -> None:
    class Slow(Desk):
        async def stage(self, payload: Any, *, key: str, timeout_s: float) -> str | Refusal:
            try:
                return await super().stage(payload, key=key, timeout_s=timeout_s)
            except asyncio.CancelledError:
                with self._call("abandoning"):
                    await asyncio.sleep(4)
                raise

    desk = Slow(steps_of(2, stage_s=8))
    assert cancelled_after(desk, 2) == 6  # the desk resets only when nothing is under way
    assert desk.resets == 1


def test_what_turns_its_cancellation_into_another_error_ends_the_loop_as_well() -> None:
    class Turns(Desk):
        async def stage(self, payload: Any, *, key: str, timeout_s: float) -> str | Refusal:
            try:
                return await super().stage(payload, key=key, timeout_s=timeout_s)
            except asyncio.CancelledError:
                raise BrokenError("connection lost") from None

        async def train_step(
            self, payload: Any = None, stage_key: str | None = None, *, on_sent: OnSent | None = None
        ) -> Trained:
            try:
                return await super().train_step(payload, stage_key, on_sent=on_sent)
            except asyncio.CancelledError:
                raise BugError("turned") from None

    desk = Turns([Plan(ready_s=64), Plan(stage_s=64)])
    assert cancelled_after(desk, 4) == 4
    assert desk.resets == 1


def test_a_step_that_is_done_though_it_was_cancelled_is_not_reset() -> None:
    class Finishes(Desk):
        async def train_step(
            self, payload: Any = None, stage_key: str | None = None, *, on_sent: OnSent | None = None
        ) -> Trained:
            step = asyncio.ensure_future(super().train_step(payload, stage_key, on_sent=on_sent))
            try:
                return await asyncio.shield(step)
            except asyncio.CancelledError:
                return await step

    desk = Finishes([Plan(ready_s=8)])
    assert cancelled_after(desk, 4) == 8
    assert desk.resets == 0


def test_what_does_not_end_when_it_is_cancelled_is_left_after_ten_seconds_with_a_note() -> None:
    class Stubborn(Desk):
        async def stage(self, payload: Any, *, key: str, timeout_s: float) -> str | Refusal:
            answer = await super().stage(payload, key=key, timeout_s=timeout_s)
            while now() < 100:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(100 - now())
            return answer

    desk = Stubborn([Plan()])

    async def leave() -> None:
        async with desk.loop() as ahead:
            waiting = asyncio.create_task(anext(ahead))
            await asyncio.sleep(4)
            assert waiting.done()
            raise BugError("first")

    async def main() -> None:
        with pytest.raises(BugError) as caught:
            await leave()
        assert now() == 14
        assert caught.value.__notes__ == ["stage-ahead loop: forebay stage lane still runs after 10 s"]
        assert desk.resets == 1

    run_virtual(main())


def test_an_error_and_then_a_cancellation_is_the_error_and_then_a_cancellation() -> None:
    desk = Desk([Plan(step_error="first")])
    desk.reset_s = 8
    heard: list[str] = []

    async def body() -> None:
        try:
            await desk.drain([])
        except BugError as error:
            heard.append(str(error))
        try:
            await asyncio.sleep(64)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(4)
        assert desk.under_way == ["reset"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == 9
        assert task.cancelling() == 1

    run_virtual(main())
    assert heard == ["first", "cancelled"]


def test_a_cancellation_while_a_loop_is_left_without_an_error_is_not_lost() -> None:
    desk = Desk(steps_of(2))
    desk.reset_s = 8

    async def leave() -> None:
        async with desk.loop() as ahead:
            await anext(ahead)
            await asyncio.sleep(1)

    async def main() -> None:
        task = asyncio.create_task(leave())
        await asyncio.sleep(4)
        assert desk.under_way == ["reset"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == 9

    run_virtual(main())
    assert desk.resets == 1


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
