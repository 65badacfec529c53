"""The loop under schedules at random, and its times against a pipeline that is computed by hand.

The desk checks at every moment: one call of each kind at a time, no more staged than the setting, no more payloads
in memory than that and one beside the one in training, and nothing pulled while one is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from forebay.orchestrator_client.stage_ahead import StageAhead
from forebay.orchestrator_client.step_report import TrainStep

from .ahead_desk import Desk
from .ahead_plans import BugError, Plan, Staging, steps_of
from .ahead_runs import train_all
from .virtual_loop import now, run_virtual

SEEDS = 1000
CHUNKS = 10


def seconds(rng: random.Random, most: int = 4) -> float:
    """Often nothing, else some eighths: their sums are exact."""
    return rng.choice((0, rng.randrange(8 * most))) / 8


def plan(rng: random.Random, *, ends_step: bool) -> Plan:
    staging = rng.choice([Staging.OK] * 5 + [Staging.REFUSED, Staging.BROKEN, Staging.LATE])
    dispatch_s = seconds(rng, 1)
    return Plan(
        pull_s=seconds(rng),
        stage_s=seconds(rng) + 64 * (staging is Staging.LATE and rng.random() < 0.5),
        staging=staging,
        land_s=seconds(rng, 32),
        is_lost=rng.random() < 0.2,
        send_s=seconds(rng),
        wait_s=seconds(rng),
        dispatch_s=dispatch_s,
        ready_s=dispatch_s + seconds(rng, 8),
        back_s=seconds(rng, 1),
        may_cross=rng.random() < 0.7,
        ends_step=ends_step,
    )


def desk_at_random(rng: random.Random) -> Desk:
    sizes = [rng.randint(1, 6) for _ in range(rng.randint(1, 5))]
    plans = [plan(rng, ends_step=index == size - 1) for size in sizes for index in range(size)]
    if rng.random() < 0.3:
        plans[-1] = dataclasses.replace(plans[-1], ends_step=False)
    desk = Desk(plans, max_staged=rng.randint(0, 4), stages=rng.random() < 0.9, timeout_s=8.0)
    desk.update_s = seconds(rng, 8)
    desk.reset_s = seconds(rng, 1)
    return desk


def loop_at_random(rng: random.Random, desk: Desk) -> StageAhead:
    return desk.loop(across_steps=rng.random() < 0.7, may_cross=rng.choice((None, desk.predicate)))


def total(steps: list[TrainStep], name: str) -> float:
    return sum(step.metrics()[f"stage/{name}"] for step in steps)


def check_counts(desk: Desk, steps: list[TrainStep]) -> None:
    assert desk.numbers("pull") == list(range(len(desk.plans)))
    staged = desk.numbers("stage")
    assert staged == sorted(set(staged)), "in order, and none twice"
    failed = {number for number in staged if desk.plans[number].staging is not Staging.OK}
    lost = {number for number in staged if desk.plans[number].is_lost} - failed
    held_back = {number for number in range(len(desk.plans)) if number not in staged}
    stages = desk.stages and desk.settings.max_staged_batches > 0
    assert total(steps, "fallbacks") == len(failed | lost)
    assert total(steps, "held_back") == (len(held_back) if stages else 0)
    assert desk.inline == sorted(failed | lost | held_back)
    assert total(steps, "staged") + total(steps, "inline") == len(desk.plans)
    asked = Counter(upcoming.key for upcoming in desk.asked)
    assert set(asked.values()) <= {1}, "asked once"
    if stages:
        assert all(not desk.plans[number].may_cross for number in held_back)
    assert desk.staged_keys == []
    assert desk.live == []


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_under_any_schedule_each_is_trained_once_in_order_and_all_bounds_hold(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        rng = random.Random(seed)
        desk = desk_at_random(rng)

        async def main(desk: Desk, rng: random.Random) -> None:
            steps = await train_all(desk, loop_at_random(rng, desk))
            await asyncio.sleep(64)  # all that is late has landed
            check_counts(desk, steps)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_virtual(main(desk, rng))


def was_left(desk: Desk) -> bool:
    """Whether the trainer was given something that it has not trained."""
    return bool({*desk.numbers("stage"), *desk.numbers("train")} - set(desk.numbers("done")))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_cancelled_at_any_moment_nothing_is_under_way_and_what_was_left_is_reset_once(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        rng = random.Random(seed)
        desk = desk_at_random(rng)

        async def main(desk: Desk, rng: random.Random) -> None:
            task = asyncio.create_task(train_all(desk, loop_at_random(rng, desk)))
            await asyncio.sleep(seconds(rng, 32))
            if task.done():
                return
            for _ in range(rng.randint(1, 3)):
                task.cancel()
                await asyncio.sleep(seconds(rng, 1))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert desk.resets == was_left(desk), desk.events
            assert desk.under_way == []
            assert desk.live == []
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await asyncio.sleep(64)
            assert desk.staged_keys == [], "what lands after the reset is thrown away"
            assert len(set(desk.applied)) == len(desk.applied)

        run_virtual(main(desk, rng))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_after_an_error_anywhere_those_before_it_are_trained_and_what_was_left_is_reset_once(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        rng = random.Random(seed)
        desk = desk_at_random(rng)
        at = rng.randrange(len(desk.plans))
        broken = rng.choice(({"step_error": "here"}, {"staging": Staging.BUG}))
        desk.plans[at] = dataclasses.replace(desk.plans[at], **broken)

        async def main(desk: Desk, rng: random.Random, at: int) -> None:
            try:
                steps = await train_all(desk, loop_at_random(rng, desk))
            except BugError:
                trained = [number for _, number in desk.applied]
                assert trained in (list(range(at)), list(range(at + 1)))
                assert desk.resets == was_left(desk) == 1
            else:
                assert desk.plans[at].staging is Staging.BUG
                assert at in desk.inline, "it was not to be staged at all"
                assert len(steps) > 0
            assert desk.under_way == []
            assert desk.live == []
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_virtual(main(desk, rng, at))


T = TypeVar("T")


async def insist(ask: Callable[[], Awaitable[T]], rng: random.Random | None) -> T:
    """Asks, with waits that end after a random time if there is an `rng`, until there is an answer."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if rng is None else seconds(rng, 2)):
                return await ask()


async def take_all(desk: Desk, rng: random.Random | None) -> list[float]:
    """Returns when each result was taken, and the end of each step heard of."""
    taken = []
    async with desk.loop() as ahead:
        while not isinstance(step := await insist(lambda: anext(ahead, "over"), rng), str):
            ask = partial(anext, step, "over")
            while await insist(ask, rng) != "over":
                taken.append(now())
            taken.append(now())
    return taken


def test_waits_that_are_cancelled_again_and_again_change_nothing() -> None:
    for seed in range(100):
        runs = []
        for rng in (None, random.Random(seed)):
            desk = desk_at_random(random.Random(seed))
            taken = run_virtual(take_all(desk, rng))
            assert [number for _, number in desk.applied] == list(range(len(desk.plans)))
            runs.append((sorted(desk.events), taken))
        assert runs[0] == runs[1]


# --- the floor ---


def pipeline(desk: Desk, *, across_steps: bool) -> list[float]:
    """When each micro-batch's call ends if nothing waits for more than it must, in closed form."""
    depth = desk.settings.max_staged_batches
    pull_began = pulled = stage_began = staged = sent = answered = step_began = float("-inf")
    begun: list[float] = []
    ends = []
    sleeps_until = 0.0
    is_first = True
    for index, plan in enumerate(desk.plans):
        if is_first:
            step_began = sleeps_until
        pull_began = max(0.0, pulled, stage_began if depth else sent)
        pulled = pull_began + plan.pull_s
        there = pulled
        if depth:
            room = begun[index - depth] if index >= depth else 0.0
            stage_began = max(pulled, staged, room, 0.0 if across_steps else step_began)
            staged = there = stage_began + plan.stage_s
        begun.append(max(there, answered, step_began))
        sent = begun[-1] + (0.0 if depth else plan.send_s)
        answered = sent + plan.wait_s + plan.ready_s + plan.back_s
        ends.append(answered)
        is_first = plan.ends_step
        sleeps_until = answered + desk.update_s
    return ends


@pytest.mark.parametrize("across_steps", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
def test_nothing_waits_for_more_than_it_must(depth: int, across_steps: bool) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        desk = desk_at_random(rng)
        plans = [dataclasses.replace(each, staging=Staging.OK, is_lost=False) for each in desk.plans]
        desk = Desk(plans, max_staged=depth, timeout_s=1000)
        desk.update_s = seconds(rng, 8)

        async def main(desk: Desk) -> list[TrainStep]:
            return await train_all(desk, desk.loop(across_steps=across_steps))

        run_virtual(main(desk))
        assert desk.at("done") == pipeline(desk, across_steps=across_steps)


def test_with_the_wire_under_the_compute_time_only_the_first_fill_is_idle() -> None:
    desk = Desk(steps_of(*[9] * 6, stage_s=9, ready_s=10.375))
    desk.update_s = 10

    async def main() -> None:
        steps = await train_all(desk, desk.loop())
        assert total(steps, "idle_s") == 9
        assert now() == 9 + 6 * (9 * 10.375 + 10)

    run_virtual(main())


def test_within_the_step_each_step_has_its_own_fill() -> None:
    desk = Desk(steps_of(*[9] * 6, stage_s=9, ready_s=10.375))
    desk.update_s = 10

    async def main() -> None:
        steps = await train_all(desk, desk.loop(across_steps=False))
        assert [step.metrics()["stage/idle_s"] for step in steps] == [9] * 6
        assert now() == 6 * (9 + 9 * 10.375 + 10)

    run_virtual(main())


def test_inline_each_micro_batch_waits_for_its_own_bytes() -> None:
    desk = Desk(steps_of(*[9] * 6, send_s=9, ready_s=10.375), max_staged=0)
    desk.update_s = 10

    async def main() -> None:
        steps = await train_all(desk, desk.loop())
        assert total(steps, "idle_s") == 6 * 9 * 9
        assert now() == 6 * (9 * (9 + 10.375) + 10)

    run_virtual(main())


def test_a_wire_that_is_slower_than_the_device_sets_the_pace() -> None:
    desk = Desk(steps_of(*[4] * 3, stage_s=16, ready_s=8))

    async def main() -> None:
        await train_all(desk, desk.loop())
        assert now() == 12 * 16 + 8

    run_virtual(main())
    assert [later - earlier for earlier, later in itertools.pairwise(desk.at("train"))] == [16] * 11
