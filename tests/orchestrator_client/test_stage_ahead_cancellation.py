"""A loop that is cancelled: nothing stays under way, what was staged is reset, and no cancellation is lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from forebay.orchestrator_client.results import Refusal
from forebay.orchestrator_client.trained import Trained
from forebay.wire import BrokenError

from .ahead_desk import Desk, OnSent
from .ahead_plans import BugError, Plan, steps_of
from .ahead_runs import cancelled_after
from .virtual_loop import now, run_virtual

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
        async def stage(self, payload: Any, *, key: str, timeout_s: float, **fresh: Any) -> str | Refusal:
            try:
                return await super().stage(payload, key=key, timeout_s=timeout_s, **fresh)
            except asyncio.CancelledError:
                with self._call("abandoning"):
                    await asyncio.sleep(4)
                raise

    desk = Slow(steps_of(2, stage_s=8))
    assert cancelled_after(desk, 2) == 6  # the desk resets only when nothing is under way
    assert desk.resets == 1


def test_what_turns_its_cancellation_into_another_error_ends_the_loop_as_well() -> None:
    class Turns(Desk):
        async def stage(self, payload: Any, *, key: str, timeout_s: float, **fresh: Any) -> str | Refusal:
            try:
                return await super().stage(payload, key=key, timeout_s=timeout_s, **fresh)
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
        async def stage(self, payload: Any, *, key: str, timeout_s: float, **fresh: Any) -> str | Refusal:
            answer = await super().stage(payload, key=key, timeout_s=timeout_s, **fresh)
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
