"""A step's numbers and its timeline, and where the worker's times lie in the loop's clock."""

from __future__ import annotations

import dataclasses

from forebay.orchestrator_client.step_report import MicroBatchTimes, StepReport, TrainStep
from forebay.orchestrator_client.timeline import LANES, Bar

from .ahead_desk import Desk
from .ahead_plans import Plan, Staging
from .ahead_runs import train_all
from .virtual_loop import run_virtual

TIMES = MicroBatchTimes(
    key="a",
    source="staged",
    pull=(1.0, 3.0),
    stage=(3.0, 8.0),
    free_at=10.0,
    called_at=12.0,
    sent_at=12.0,
    answered_at=32.0,
    worker_wait_s=4.0,
    dispatch_s=1.0,
    ready_s=10.0,
    idle_s=6.0,
)
NAMES = (
    *("micro_batches", "staged", "inline", "fallbacks", "stale", "held_back", "adopted"),
    *("pull_s", "stage_s", "wait_s", "dispatch_s", "compute_s", "idle_s", "idle_fraction", "step_s"),
)


def run(desk: Desk, *, asks: bool = False) -> list[TrainStep]:
    async def main() -> list[TrainStep]:
        return await train_all(desk, desk.loop(may_cross=desk.predicate if asks else None))

    return run_virtual(main())


# --- one micro-batch ---


def test_the_workers_time_lies_within_the_call_and_the_rest_of_it_evenly_before_and_after() -> None:
    # The call took 20 s, of which the worker explains 14: 3 s before, 3 s after.
    assert TIMES.ready_at == 29.0
    assert TIMES.dispatched_at == 19.0


def test_the_wait_is_until_the_call_and_then_in_the_worker() -> None:
    assert TIMES.wait_s == 2.0 + 4.0


def test_the_bars_of_a_micro_batch_are_its_way() -> None:
    assert tuple(TIMES.bars()) == (
        Bar("pull", "a", 1.0, 3.0),
        Bar("stage", "a", 3.0, 8.0),
        Bar("wait", "a", 10.0, 19.0),
        Bar("dispatch", "a", 19.0, 20.0),
        Bar("device", "a", 19.0, 29.0),
    )
    assert {bar.lane for bar in TIMES.bars()} <= set(LANES)


def test_one_that_was_not_staged_has_no_such_bar() -> None:
    assert [bar.lane for bar in dataclasses.replace(TIMES, stage=None).bars()] == [
        *("pull", "wait", "dispatch", "device"),
    ]


def test_the_sending_of_an_inline_payload_is_no_time_of_the_worker() -> None:
    inline = dataclasses.replace(TIMES, source="inline", sent_at=16.0)
    # From 16 on the call took 16 s, of which the worker explains 14.
    assert (inline.dispatched_at, inline.ready_at) == (21.0, 31.0)
    assert inline.wait_s == 6.0 + 4.0


def test_a_worker_whose_clock_runs_fast_is_placed_within_the_call() -> None:
    fast = dataclasses.replace(TIMES, ready_s=30.0)
    assert (fast.dispatched_at, fast.ready_at) == (12.0, 32.0)


# --- a step ---


def test_a_steps_numbers_are_sums_over_its_micro_batches() -> None:
    report = StepReport(3)
    report.pulled = 2
    report.begin(10.0, adopted=1)
    report.held_back = 1
    report.fallbacks.append(("b", "refused"))
    report.stale.append(("c", "stale"))
    report.add(TIMES)
    later = dataclasses.replace(
        TIMES, key="b", source="inline", stage=None, free_at=32.0, called_at=33.0, sent_at=33.0, answered_at=47.0
    )
    report.add(later)
    assert report.metrics() == {
        "stage/micro_batches": 2,
        "stage/staged": 1,
        "stage/inline": 1,
        "stage/fallbacks": 1,
        "stage/stale": 1,
        "stage/held_back": 1,
        "stage/adopted": 1,
        "stage/pull_s": 4.0,
        "stage/stage_s": 5.0,
        "stage/wait_s": 6.0 + 5.0,
        "stage/dispatch_s": 2.0,
        "stage/compute_s": 20.0,
        "stage/idle_s": 9.0 + 6.0,  # from the beginning, 10, to the dispatch, 19; then what the worker says
        "stage/idle_fraction": 15.0 / 37.0,
        "stage/step_s": 37.0,
    }
    assert [bar.key for bar in report.bars()] == ["a"] * 5 + ["b"] * 4


def test_every_number_is_a_float_and_there_from_the_start() -> None:
    numbers = StepReport(0).metrics()
    assert tuple(numbers) == tuple(f"stage/{name}" for name in NAMES)
    assert all(type(value) is float for value in numbers.values())
    assert set(numbers.values()) == {0.0}


def test_a_step_that_took_no_time_was_not_idle() -> None:
    report = StepReport(0)
    report.begin(10.0, adopted=0)
    still = dict.fromkeys(("called_at", "sent_at", "answered_at"), 10.0)
    report.add(dataclasses.replace(TIMES, **still, worker_wait_s=0.0, ready_s=0.0))  # type: ignore[arg-type]
    assert report.metrics()["stage/idle_fraction"] == 0.0


def test_a_report_shows_how_far_its_step_is() -> None:
    report = StepReport(3)
    report.pulled = 2
    report.add(TIMES)
    assert repr(report) == "StepReport(3, 1 of 2 pulled ones trained)"


# --- as the loop fills it ---


def test_the_loops_times_are_those_of_what_happened() -> None:
    plan = Plan(pull_s=2, stage_s=4, wait_s=1, dispatch_s=0.5, ready_s=8, back_s=2)
    desk = Desk([plan, plan])
    [step] = run(desk)
    first, second = step.micro_batches
    assert (first.pull, first.stage) == ((0, 2), (2, 6))
    assert (first.free_at, first.called_at, first.answered_at) == (0, 6, 17)
    assert first.wait_s == 6 + 1
    assert (second.pull, second.stage) == ((2, 4), (6, 10))
    assert (second.free_at, second.called_at, second.answered_at) == (17, 17, 28)
    assert second.wait_s == 1
    # The answer's way of 2 s is split: the first was dispatched at 7, and is placed at 8.
    assert (first.dispatched_at, first.ready_at) == (8, 16)
    assert second.idle_s == 1 + 2
    assert step.metrics()["stage/idle_s"] == 8 + 3
    assert step.metrics()["stage/step_s"] == 27
    assert step.spans == tuple(bar for each in step.micro_batches for bar in each.bars())


def test_the_second_step_begins_when_it_is_asked_for() -> None:
    desk = Desk([Plan(ends_step=True, ready_s=4), Plan(ready_s=4)])
    desk.update_s = 8
    _, second = run(desk)
    numbers = second.metrics()
    assert second.micro_batches[0].free_at == 12
    assert second.micro_batches[0].idle_s == 8, "the worker cannot tell the update from idleness"
    assert (numbers["stage/idle_s"], numbers["stage/step_s"], numbers["stage/adopted"]) == (0, 4, 1)


def test_a_staging_that_failed_has_its_time_too() -> None:
    desk = Desk([Plan(staging=Staging.LATE, stage_s=100, send_s=2, ready_s=1)], timeout_s=4)
    [step] = run(desk)
    [times] = step.micro_batches
    assert times.stage == (0.0, 4.0)
    assert (times.called_at, times.sent_at, times.answered_at) == (4, 6, 7)
    assert times.wait_s == 6
    assert step.metrics()["stage/stage_s"] == 4


def test_the_wait_for_a_lost_one_includes_the_call_in_vain() -> None:
    desk = Desk([Plan(is_lost=True, wait_s=2, send_s=4, ready_s=1)])
    [step] = run(desk)
    [times] = step.micro_batches
    assert (times.free_at, times.called_at, times.sent_at) == (0, 2, 6)
    assert times.wait_s == 6 + 2


def test_one_that_was_held_back_has_no_staging() -> None:
    desk = Desk([Plan(ends_step=True), Plan(may_cross=False)])
    _, second = run(desk, asks=True)
    assert second.micro_batches[0].stage is None


def test_what_a_step_tells_grows_while_it_runs_and_stays_afterwards() -> None:
    desk = Desk([Plan(), Plan(), Plan(ends_step=True), Plan()])

    async def main() -> None:
        async with desk.loop() as ahead:
            step = await anext(ahead)
            counts = [len(step.micro_batches) async for _ in step]
            assert counts == [1, 2, 3]
            before = step.metrics(), step.spans
            async for later in ahead:
                async for _ in later:
                    pass
            assert (step.metrics(), step.spans) == before

    run_virtual(main())
