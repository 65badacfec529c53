"""The boundary between steps: what crosses it, what may not, and how steps are iterated."""

from __future__ import annotations

import asyncio

import pytest

from forebay.orchestrator_client.source import Upcoming
from forebay.orchestrator_client.step_report import TrainStep
from forebay.wire import UsageError

from .ahead_desk import Desk
from .ahead_plans import BugError, Plan, steps_of
from .ahead_runs import train_all
from .virtual_loop import now, run_virtual


def run(desk: Desk, *, across_steps: bool = True, asks: bool = False) -> list[TrainStep]:
    async def main() -> list[TrainStep]:
        loop = desk.loop(across_steps=across_steps, may_cross=desk.predicate if asks else None)
        return await train_all(desk, loop)

    return run_virtual(main())


# --- across ---


def test_the_next_steps_micro_batches_are_staged_while_the_present_step_runs_and_during_the_update() -> None:
    desk = Desk(steps_of(2, 3, stage_s=4, ready_s=8))
    desk.update_s = 16
    first, second = run(desk)
    assert desk.at("train")[:2] == [4, 12]
    assert desk.at("stage") == [0, 4, 8, 12, 36]
    assert desk.at("update") == [20, 60]
    assert desk.at("train")[2:] == [36, 44, 52], "no gap after the update"
    assert (first.metrics()["stage/adopted"], second.metrics()["stage/adopted"]) == (0, 2)


def test_one_that_is_being_staged_when_its_step_begins_is_adopted_as_its_call_in_flight() -> None:
    desk = Desk(steps_of(1, 2, stage_s=16, ready_s=4))
    _, second = run(desk)
    assert desk.at("stage") == [0, 16, 32]
    assert desk.at("train") == [16, 32, 48]
    assert second.metrics()["stage/adopted"] == 1


def test_one_that_has_room_is_staged_even_if_its_step_is_far_ahead() -> None:
    desk = Desk(steps_of(1, 1, 1, 1, ready_s=64), max_staged=2)

    async def main() -> None:
        async with desk.loop() as ahead:
            await anext(ahead)
            await asyncio.sleep(1)
            assert desk.numbers("staged") == [0, 1, 2]

    run_virtual(main())


def test_before_any_step_is_asked_for_the_first_ones_are_staged() -> None:
    desk = Desk(steps_of(4, ready_s=1))

    async def main() -> None:
        async with desk.loop() as ahead:
            await asyncio.sleep(8)
            assert desk.numbers("staged") == [0, 1]
            assert desk.numbers("pulled") == [0, 1, 2]
            assert desk.numbers("train") == []
            step = await anext(ahead)
            assert [trained.value async for trained in step] == [0, 1, 2, 3]
            assert step.metrics()["stage/adopted"] == 2

    run_virtual(main())


# --- not across ---


def test_without_crossing_the_next_steps_first_is_pulled_and_staged_only_in_its_step() -> None:
    desk = Desk(steps_of(2, 2, pull_s=1, stage_s=4, ready_s=8))
    desk.update_s = 16
    _, second = run(desk, across_steps=False)
    assert desk.at("train")[:2] == [5, 13]
    assert desk.at("pull") == [0, 1, 5, 37]
    assert desk.at("stage") == [1, 5, 37, 41]
    assert desk.at("train")[2:] == [41, 49]
    assert second.metrics()["stage/adopted"] == 0


# --- the predicate ---


def test_the_predicate_is_asked_once_of_each_that_would_be_staged_before_its_step_and_of_no_other() -> None:
    desk = Desk(steps_of(3, 3, stage_s=1, ready_s=16), max_staged=1)
    desk.update_s = 16
    run(desk, asks=True)
    assert [(asked.step, asked.index, asked.ends_step) for asked in desk.asked] == [(1, 0, False)]
    assert desk.asked[0].key == desk.applied[3][0]


def test_without_crossing_the_predicate_is_not_asked() -> None:
    desk = Desk(steps_of(2, 2))
    run(desk, across_steps=False, asks=True)
    assert desk.asked == []


def test_one_that_may_not_cross_goes_inline_in_its_step_and_nothing_after_it_is_pulled_before() -> None:
    plans = [*steps_of(2, ready_s=8), Plan(may_cross=False, send_s=4, ready_s=8), *steps_of(2, ready_s=8)]
    desk = Desk(plans)
    desk.update_s = 16
    first, second = run(desk, asks=True)
    assert desk.inline == [2]
    assert desk.numbers("stage") == [0, 1, 3, 4]
    assert desk.at("pull") == [0, 0, 0, 36, 36], "sent at 36: the step begins at 32"
    assert second.fallbacks == ()
    assert first.metrics()["stage/held_back"] == 0
    numbers = second.metrics()
    assert (numbers["stage/held_back"], numbers["stage/fallbacks"], numbers["stage/adopted"]) == (1, 0, 0)
    assert (numbers["stage/inline"], numbers["stage/staged"]) == (1, 2)


def test_one_that_may_not_cross_lets_those_before_it_be_trained_staged() -> None:
    plans = [*steps_of(1, ready_s=8), Plan(), Plan(may_cross=False, send_s=2), Plan(ends_step=True)]
    desk = Desk(plans, max_staged=4)
    _, second = run(desk, asks=True)
    assert desk.inline == [2]
    assert second.metrics()["stage/adopted"] == 1


def test_an_error_of_the_predicate_is_raised_in_the_turn_of_its_micro_batch() -> None:
    desk = Desk(steps_of(2, 2, ready_s=4))

    def broken(upcoming: Upcoming) -> bool:
        if upcoming.index == 1 and upcoming.step == 1:
            raise BugError("in the predicate")
        return True

    found: list[int] = []

    with pytest.raises(BugError, match="in the predicate"):
        run_virtual(desk.drain(found, may_cross=broken))
    assert found == [0, 1, 2]
    assert desk.resets == 0, "the one that failed had never left the loop"


# --- the end of steps ---


def test_the_end_of_the_source_ends_a_step_and_an_empty_one_is_none() -> None:
    assert [len(step.micro_batches) for step in run(Desk(steps_of(2, 2)))] == [2, 2]
    assert [len(step.micro_batches) for step in run(Desk([*steps_of(2), Plan(), Plan()]))] == [2, 2]
    assert run(Desk([])) == []


def test_after_the_end_there_is_nothing_more() -> None:
    desk = Desk([Plan(), Plan()])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            assert [trained.value async for trained in step] == [0, 1]
            for _ in range(3):
                assert [trained async for trained in step] == []
                assert [step async for step in ahead] == []
            assert step.metrics()["stage/micro_batches"] == 2

    run_virtual(main())


def test_a_past_step_takes_nothing_of_the_present_one() -> None:
    desk = Desk(steps_of(1, 2))

    async def main() -> None:
        async with desk.loop() as ahead:
            past = await anext(ahead)
            assert [trained.value async for trained in past] == [0]
            present = await anext(ahead)
            await asyncio.sleep(8)
            assert [trained async for trained in past] == []
            assert [trained.value async for trained in present] == [1, 2]

    run_virtual(main())


def test_a_step_is_given_when_its_first_micro_batch_is_pulled() -> None:
    desk = Desk(steps_of(1, 1, pull_s=8, ready_s=1))

    async def main() -> None:
        given = []
        async with desk.loop() as ahead:
            async for step in ahead:
                given.append(now())
                async for _ in step:
                    pass
        assert given == [8, 16]

    run_virtual(main())


# --- mistakes ---


def test_to_ask_for_the_next_step_before_this_one_is_over_is_an_error_that_names_what_is_left() -> None:
    desk = Desk([Plan(key=key, ready_s=4, ends_step=key == "c") for key in "abcd"])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            assert (await anext(step)).key == "a"
            with pytest.raises(
                UsageError, match="step 0 is not over; left of it: 'b', 'c'; iterate it to its end"
            ):
                await anext(ahead)
            await asyncio.sleep(64)
            with pytest.raises(UsageError, match="left of it: 'b', 'c';"):
                await anext(ahead)
            assert [trained.key async for trained in step] == ["b", "c"], "nothing has changed"
            assert [[trained.key async for trained in step] async for step in ahead] == [["d"]]

    run_virtual(main())
    assert desk.resets == 0


def test_what_is_left_of_a_large_step_is_named_in_part() -> None:
    desk = Desk([Plan(key=f"{number}") for number in range(20)], max_staged=16)

    async def main() -> None:
        async with desk.loop() as ahead:
            await anext(ahead)
            await asyncio.sleep(0.5)
            with pytest.raises(
                UsageError, match="left of it: '0', '1', '2', '3', '4', '5', '6', '7' and 10 more;"
            ):
                await anext(ahead)

    run_virtual(main())


def test_if_only_unpulled_ones_are_left_that_is_said() -> None:
    desk = Desk([Plan(), Plan(pull_s=64)])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            await anext(step)
            with pytest.raises(UsageError, match="left of it: what is not pulled yet;"):
                await anext(ahead)

    run_virtual(main())


def test_a_step_and_a_loop_are_iterated_by_one_task_at_a_time() -> None:
    desk = Desk(steps_of(3, pull_s=2, ready_s=2))

    async def main() -> None:
        async with desk.loop() as ahead:
            first = asyncio.create_task(anext(ahead))
            await asyncio.sleep(1)
            with pytest.raises(UsageError, match="iterated twice at once"):
                await anext(ahead)
            step = await first
            second = asyncio.create_task(anext(step))
            await asyncio.sleep(1)
            with pytest.raises(UsageError, match="iterated twice at once"):
                await anext(step)
            assert (await second).value == 0
            assert [trained.value async for trained in step] == [1, 2]

    run_virtual(main())


def test_outside_of_its_context_a_loop_and_its_steps_are_of_no_use() -> None:
    desk = Desk(steps_of(2))

    async def main() -> None:
        loop = desk.loop()
        with pytest.raises(UsageError, match="outside its context"):
            await anext(loop)
        async with loop as ahead:
            step = await anext(ahead)
            with pytest.raises(UsageError, match="entered a second time"):
                await loop.__aenter__()
            assert (await anext(step)).value == 0, "nothing has changed"
        for asked in (loop, step):
            with pytest.raises(UsageError, match="outside its context"):
                await anext(asked)
        with pytest.raises(UsageError, match="entered a second time"):
            await loop.__aenter__()

    run_virtual(main())
