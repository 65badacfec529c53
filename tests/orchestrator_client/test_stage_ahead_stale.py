"""Micro-batches that are stale: the loop skips them, sends their bytes nowhere, and says so."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.step_report import TrainStep
from forebay.wire import UsageError

from .ahead_desk import Desk
from .ahead_hands import Hands
from .ahead_plans import Plan, Staging
from .ahead_runs import run
from .virtual_loop import run_virtual

OK = Plan(stage_s=2, send_s=1, ready_s=4)
REFUSED = "stale: policy version 1 is 2 behind 3, limit 1"
DROPPED = "micro-batch b is dropped: stale"


def steps_of(desk: Desk) -> list[tuple[TrainStep, list[int]]]:
    """Trains all that is not stale; returns the steps, with the numbers of what was trained in each."""

    async def main() -> list[tuple[TrainStep, list[int]]]:
        found = []
        async with desk.loop() as ahead:
            async for step in ahead:
                found.append((step, [trained.value async for trained in step]))
                await desk.update()
        return found

    return run_virtual(main())


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(key="b", staging=Staging.STALE), REFUSED),
        (Plan(key="b", is_stale=True), DROPPED),
        (Plan(key="b", staging=Staging.BROKEN, expires_s=3.0), "stale: its time was over 3.0 s ago"),
    ],
)
def test_a_stale_one_is_skipped_and_never_goes_inline(
    plan: Plan, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="forebay.client")
    desk = Desk([OK, plan, OK, OK])
    [(step, values)] = steps_of(desk)
    assert values == [0, 2, 3]
    assert desk.inline == []
    assert step.stale == (("b", reason),)
    assert step.metrics()["stage/stale"] == 1
    assert step.metrics()["stage/micro_batches"] == 3
    assert f"stage_stale key=b policy_version=None reason={reason}" in [
        record.getMessage() for record in caplog.records
    ]
    assert desk.resets == 0
    assert desk.live == []


def test_what_is_stale_before_its_turn_goes_inline_nowhere_even_if_nothing_is_staged() -> None:
    desk = Desk([OK, Plan(key="b", expires_s=2.0), OK], stages=False)
    [(step, values)] = steps_of(desk)
    assert (values, [key for key, _ in step.stale]) == ([0, 2], ["b"])
    assert desk.inline == [0, 2]


def test_an_inline_one_whose_time_is_not_over_is_trained() -> None:
    desk = Desk([OK, Plan(key="b", expires_s=100.0), OK], stages=False)
    [(step, values)] = steps_of(desk)
    assert (values, step.stale) == ([0, 1, 2], ())


def test_a_staging_is_told_the_version_and_how_much_time_is_left() -> None:
    desk = Desk(
        [Plan(policy_version=7, expires_s=50.0, stage_s=2, ready_s=8), Plan(stage_s=2), Plan(expires_s=50.0)]
    )
    steps_of(desk)
    # The last one was yielded while the second was on its way, for two seconds.
    assert desk.fresh == [(7, 50.0), (None, None), (None, 48.0)]


@pytest.mark.parametrize("stale", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_step_ends_where_its_last_one_stood_whichever_of_it_are_stale(stale: tuple[int, ...]) -> None:
    plans = [
        Plan(staging=Staging.STALE if index in stale else Staging.OK, ends_step=index == 2, stage_s=1)
        for index in range(3)
    ]
    desk = Desk([*plans, *[Plan(ends_step=index == 1, stage_s=1) for index in range(2)]])
    first, second = steps_of(desk)
    assert first[1] == [index for index in range(3) if index not in stale]
    assert len(first[0].stale) == len(stale)
    assert (second[1], second[0].stale) == ([3, 4], ())


def test_the_next_steps_first_ones_may_be_stale_before_it_begins() -> None:
    plans = [Plan(ends_step=True, ready_s=64), Plan(staging=Staging.STALE), Plan(ends_step=True)]
    first, second = steps_of(Desk(plans))
    assert (first[1], first[0].stale) == ([0], ())
    assert second[1] == [2]
    assert len(second[0].stale) == 1


def test_the_books_pass_over_what_was_skipped_in_order() -> None:
    hands = Hands(max_staged=4)
    hands.begin_step()
    hands.stage("a", "b")
    hands.pull("c")
    hands.books.skipped(hands.begin_staging(), REFUSED)
    hands.stage("D")
    hands.train("a")
    hands.books.skipped(hands.begin_training(), DROPPED)
    hands.train("D")
    hands.take("a", "D")
    assert hands.is_over()
    assert hands.books.present is not None
    assert [key for key, _ in hands.books.present.stale] == ["c", "b"]
    assert not hands.trainer_may_hold_some()


@pytest.mark.parametrize(
    "wrong", [{"policy_version": -1}, {"policy_version": "3"}, {"expires_s": float("nan")}, {"expires_s": "soon"}]
)
def test_a_version_or_an_expiry_that_is_none_is_the_sources_mistake(wrong: dict[str, object]) -> None:
    async def source() -> AsyncIterator[MicroBatch]:
        yield MicroBatch(object(), "a", **wrong)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=r"a policy version|an expiry"):
        run(Desk([OK]), [], source())
