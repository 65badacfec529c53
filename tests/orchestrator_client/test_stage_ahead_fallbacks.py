"""Micro-batches that could not be staged, or were lost after they were: they go inline, once, and are counted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from forebay.orchestrator_client.remote_errors import NotBegunError
from forebay.orchestrator_client.results import Refusal
from forebay.orchestrator_client.step_report import TrainStep
from forebay.orchestrator_client.trained import Trained
from forebay.wire import BrokenError, LocalError

from .ahead_desk import Desk, OnSent
from .ahead_plans import BugError, Plan, Staging, not_begun
from .ahead_runs import train_all
from .virtual_loop import run_virtual

OK = Plan(stage_s=2, send_s=1, ready_s=4)


def run(desk: Desk) -> list[TrainStep]:
    async def main() -> list[TrainStep]:
        return await train_all(desk, desk.loop())

    return run_virtual(main())


REASONS = {
    Staging.REFUSED: "refused (no_slot): all slots are taken",
    Staging.BROKEN: "BrokenError: the daemon stopped",
    Staging.LATE: "WaitTimeoutError: b was not staged in 64.0 s",
}


@pytest.mark.parametrize("staging", REASONS)
def test_one_that_cannot_be_staged_goes_inline_is_counted_with_its_reason_and_the_next_is_staged_again(
    staging: Staging, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="forebay.client")
    desk = Desk([OK, Plan(key="b", staging=staging, land_s=1000), OK, OK])
    [step] = run(desk)
    assert step.fallbacks == (("b", REASONS[staging]),)
    assert desk.inline == [1]
    assert desk.numbers("stage") == [0, 1, 2, 3]
    numbers = step.metrics()
    assert (numbers["stage/fallbacks"], numbers["stage/staged"], numbers["stage/inline"]) == (1, 3, 1)
    assert [record.getMessage() for record in caplog.records] == [
        f"stage_fallback key=b reason={REASONS[staging]}"
    ]


def test_one_that_falls_back_in_a_later_step_counts_there() -> None:
    desk = Desk([Plan(ends_step=True, ready_s=64), Plan(key="b", staging=Staging.REFUSED)])
    first, second = run(desk)
    assert first.fallbacks == ()
    assert [key for key, _ in second.fallbacks] == ["b"]


def test_bytes_that_land_before_the_step_are_used_and_the_payload_is_not() -> None:
    desk = Desk([Plan(key="a", staging=Staging.LATE, stage_s=100, land_s=1, send_s=2)], timeout_s=4)
    [step] = run(desk)
    assert desk.inline == [0]
    assert desk.staged_keys == []
    assert step.micro_batches[0].source == "staged"
    assert step.metrics()["stage/fallbacks"] == 1


def test_bytes_that_land_after_the_step_are_thrown_away() -> None:
    desk = Desk([Plan(key="a", staging=Staging.LATE, stage_s=100, land_s=5, ready_s=2), OK, OK], timeout_s=4)
    run(desk)
    assert desk.thrown_away == ["a"]
    assert desk.staged_keys == []


def test_a_late_one_goes_inline_when_the_setting_says_so() -> None:
    desk = Desk([Plan(staging=Staging.LATE, stage_s=100)], timeout_s=4)
    run(desk)
    assert desk.at("train") == [4]


def test_nothing_is_pulled_until_the_bytes_of_a_fallback_are_sent() -> None:
    plans = [Plan(ready_s=32), Plan(staging=Staging.REFUSED, stage_s=4, send_s=8, ready_s=16), Plan(), Plan()]
    desk = Desk(plans)
    run(desk)
    assert desk.at("pull") == [0, 0, 0, 40]
    assert desk.at("staged") == [0, 4, 4, 40], "the one that was pulled meanwhile is staged all the same"


# --- lost ---


def test_a_staged_one_that_was_lost_goes_inline_once_and_is_counted_with_its_reason() -> None:
    desk = Desk([OK, Plan(key="b", is_lost=True), OK])
    [step] = run(desk)
    reason = "NotBegunError: train_step raised in the trainer's worker, which is ready: b was lost"
    assert step.fallbacks == (("b", reason),)
    assert desk.numbers("train") == [0, 1, 1, 2]
    assert desk.numbers("stage") == [0, 1, 2]
    assert desk.inline == [1]
    assert (step.metrics()["stage/staged"], step.metrics()["stage/inline"]) == (2, 1)


def test_while_the_bytes_of_a_lost_one_are_on_their_way_nothing_is_pulled() -> None:
    desk = Desk([Plan(is_lost=True, wait_s=1, send_s=8, ready_s=16), Plan(), Plan(), Plan(), Plan()], max_staged=1)
    run(desk)
    assert desk.at("pull") == [0, 0, 0, 26, 27]
    assert desk.at("train")[:2] == [0, 1]


class NeverBegins(Desk):
    """Says of a micro-batch, whatever it is passed, that it was not begun."""

    async def train_step(
        self, payload: Any = None, stage_key: str | None = None, *, on_sent: OnSent | None = None
    ) -> Trained:
        if stage_key != "b":
            return await super().train_step(payload, stage_key, on_sent=on_sent)
        self._answered.clear()
        self.inline.append(payload is not None)
        raise not_begun("no b, never")


@pytest.mark.parametrize(("max_staged", "passed"), [(2, [False, True]), (0, [True])])
def test_an_inline_one_that_was_not_begun_is_the_steps_error(max_staged: int, passed: list[bool]) -> None:
    desk = NeverBegins([Plan(key="b"), OK], max_staged=max_staged)

    async def main() -> None:
        async with desk.loop() as ahead:
            async for step in ahead:
                with pytest.raises(NotBegunError, match="no b, never"):
                    await anext(step)
                break

    run_virtual(main())
    assert desk.inline == passed
    assert desk.applied == []
    assert desk.resets == 1


# --- what is no fallback ---


class Wrong(Desk):
    """Raises, for one key, what the loop must not take for a refusal."""

    error: Exception

    async def stage(self, payload: Any, *, key: str, timeout_s: float, **fresh: Any) -> str | Refusal:
        answer = await super().stage(payload, key=key, timeout_s=timeout_s, **fresh)
        if key == "b":
            raise self.error
        return answer


@pytest.mark.parametrize("error", [BugError("in stage"), LocalError("an illegal move"), TimeoutError("not ours")])
def test_a_bug_in_staging_is_an_error_and_no_fallback(error: Exception) -> None:
    desk = Wrong([OK, Plan(key="b"), OK, OK])
    desk.error = error
    found: list[int] = []
    with pytest.raises(type(error)) as caught:
        run_virtual(desk.drain(found))
    assert caught.value is error
    assert found == [0], "those before it are trained"
    assert desk.numbers("stage") == [0, 1], "nothing is staged any more"
    assert desk.inline == []
    assert desk.resets == 1


def test_a_bug_in_a_later_steps_staging_is_that_steps_error() -> None:
    desk = Desk([Plan(ends_step=True, ready_s=64), Plan(staging=Staging.BUG)])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            assert [trained.value async for trained in step] == [0]
            await desk.update()
            step = await anext(ahead)
            with pytest.raises(BugError, match="in stage"):
                await anext(step)

    run_virtual(main())
    assert desk.resets == 1


def test_a_lane_that_somebody_else_cancels_is_an_error_and_no_hang() -> None:
    class Cancels(Desk):
        async def train_step(
            self, payload: Any = None, stage_key: str | None = None, *, on_sent: OnSent | None = None
        ) -> Trained:
            await super().train_step(payload, stage_key, on_sent=on_sent)
            raise asyncio.CancelledError

    with pytest.raises(BrokenError, match="what the forebay train lane did was cancelled, not by the loop"):
        run_virtual(Cancels([OK]).drain([]))
