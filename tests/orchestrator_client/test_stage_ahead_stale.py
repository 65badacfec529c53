"""Micro-batches that are stale: the loop skips them, sends their bytes nowhere, and says so."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import random
from collections.abc import AsyncIterator

import pytest

from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.orchestrator_client.step_report import TrainStep
from forebay.wire import UsageError

from .ahead_desk import Desk
from .ahead_hands import Hands, trained_of
from .ahead_plans import Payload, Plan, Staging
from .ahead_runs import run
from .virtual_loop import run_virtual

OK = Plan(stage_s=2, send_s=1, ready_s=4)
STALE = Plan(staging=Staging.STALE, stage_s=1)
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


def endless(desk: Desk, pulled: list[int], *, ends_step: bool) -> AsyncIterator[MicroBatch]:
    """Yields one that is trained, and then stale ones for ever, in one step or each in its own."""

    async def source() -> AsyncIterator[MicroBatch]:
        for number in itertools.count():
            pulled.append(number)
            desk.plans.append(dataclasses.replace(OK, ready_s=64) if number == 0 else STALE)
            await asyncio.sleep(0.5)
            yield MicroBatch(Payload(number), ends_step=ends_step)

    return source()


@pytest.mark.parametrize("max_staged", [1, 2, 4])
@pytest.mark.parametrize("ends_step", [False, True])
def test_a_source_of_stale_ones_without_an_end_is_not_run_through_while_one_is_trained(
    max_staged: int, *, ends_step: bool
) -> None:
    desk = Desk([], max_staged=max_staged)
    pulled: list[int] = []

    async def main() -> None:
        source = endless(desk, pulled, ends_step=ends_step)
        async with StageAhead(desk, source, desk.settings, clock=asyncio.get_running_loop().time) as ahead:
            await anext(ahead)
            await asyncio.sleep(60)
            assert desk.under_way == ["train"]
            assert pulled == list(range(1 + max_staged + 1)), "the one in training, and those ahead of it"
            await asyncio.sleep(60)
            assert desk.applied == [(desk.applied[0][0], 0)]
            # Of one step they are passed over as they come now; those of the next ones wait for these to begin.
            assert (len(pulled) == 1 + max_staged + 1) is ends_step

    run_virtual(main())


def test_steps_that_are_all_stale_are_given_one_by_one_and_each_lets_the_source_go_on_by_one() -> None:
    desk = Desk([], max_staged=2)
    pulled: list[int] = []

    async def main() -> None:
        source = endless(desk, pulled, ends_step=True)
        async with StageAhead(desk, source, desk.settings, clock=asyncio.get_running_loop().time) as ahead:
            for number in range(20):
                step = await anext(ahead)
                values = [trained.value async for trained in step]
                assert (step.number, values, len(step.stale)) == (number, [0][number:], min(number, 1))
                assert len(step.micro_batches) == len(values)
                await asyncio.sleep(100)
                assert len(pulled) == number + 1 + 3

    run_virtual(main())


def plan_at_random(rng: random.Random) -> Plan:
    return Plan(
        pull_s=rng.randrange(16) / 8,
        stage_s=rng.randrange(16) / 8,
        staging=rng.choice([Staging.OK, Staging.STALE, Staging.STALE, Staging.REFUSED]),
        is_stale=rng.random() < 0.2,
        expires_s=rng.choice((None, 4.0)),
        ready_s=rng.randrange(64) / 8,
        ends_step=rng.random() < 0.4,
    )


def look_no_further(ahead: StageAhead, desk: Desk) -> None:
    """Checks, whenever one is pulled, that the books hold the one in training and those ahead of it alone."""
    note = desk._note

    def noted(what: str, number: int) -> None:
        entries = list(ahead._books._entries)
        assert what != "pull" or len(entries) <= 1 + desk.settings.max_staged_batches, entries
        note(what, number)

    desk._note = noted  # type: ignore[method-assign]


async def train_at_random(desk: Desk, rng: random.Random) -> None:
    ahead = desk.loop(across_steps=rng.random() < 0.7)
    look_no_further(ahead, desk)
    async with ahead:
        async for step in ahead:
            values = [trained.value async for trained in step]
            assert len(step.micro_batches) == len(values)
            await asyncio.sleep(rng.randrange(64) / 8)


def test_whichever_are_stale_the_others_are_trained_in_order_and_the_loop_looks_no_further_ahead() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        plans = [plan_at_random(rng) for _ in range(rng.randint(1, 20))]
        desk = Desk(plans, max_staged=rng.randint(0, 4))
        run_virtual(train_at_random(desk, rng))
        assert desk.numbers("pull") == list(range(len(plans)))
        trained = [number for _, number in desk.applied]
        assert trained == sorted(set(trained))
        refused = {number for number in desk.numbers("stage") if plans[number].staging is Staging.STALE}
        never_stale = {n for n, each in enumerate(plans) if not each.is_stale and each.expires_s is None} - refused
        assert never_stale <= set(trained) <= set(range(len(plans))) - refused


def test_skipped_ones_count_as_ahead_until_they_are_passed_over() -> None:
    hands = Hands(max_staged=2)
    hands.begin_step()
    hands.stage("a")
    entry = hands.begin_training()
    hands.pull("b")
    hands.books.skipped(hands.begin_staging(), REFUSED)
    hands.stage("c")
    hands.pull("d")
    hands.books.skipped(hands.begin_staging(), REFUSED)
    assert not hands.may_pull()
    hands.books.trained(entry, trained_of(entry), 1.0)
    assert hands.may_pull(), "b is passed over; c is staged, and d waits behind it"


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
