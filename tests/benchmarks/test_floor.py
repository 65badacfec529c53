"""The model behind the floor: the numbers that it is known for, and its rules one by one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.benchmarks.floor import Floor, Schedule, Workload, floor_of
from forebay.wire import UsageError

STEADY_S = (9.0,) * 9
COMPRESSED_S = (4.5,) * 9
BAD_TRACE_S = (9.0, 16.2, 15.1, 13.4, 11.9, 10.4, 9.6, 9.4, 8.9)


def workload(wire_s: tuple[float, ...] = STEADY_S, *, steps: int = 6, **changed: float | None) -> Workload:
    run = Workload(wire_s=wire_s, copy_s=3.9, compute_s=10.35, update_s=10.0, steps=steps)
    return dataclasses.replace(run, **changed)  # type: ignore[arg-type]


def idle_percent(run: Workload, schedule: Schedule) -> float:
    return 100 * floor_of(run, schedule).idle_share


# --- the table ---


@pytest.mark.parametrize(
    ("schedule", "wire_s", "printed"),
    [
        (Schedule.INLINE, STEADY_S, "53"),
        (Schedule.INLINE, COMPRESSED_S, "42"),
        (Schedule.INLINE, BAD_TRACE_S, "57"),
        (Schedule.WITHIN, STEADY_S, "11"),
        (Schedule.WITHIN, COMPRESSED_S, "7.5"),
        (Schedule.WITHIN, BAD_TRACE_S, "21"),
        (Schedule.ACROSS, STEADY_S, "2.0"),
        (Schedule.ACROSS, COMPRESSED_S, "1.3"),
        (Schedule.ACROSS, BAD_TRACE_S, "4.9"),
    ],
)
def test_the_model_gives_the_number_that_it_is_known_for(
    schedule: Schedule, wire_s: tuple[float, ...], printed: str
) -> None:
    decimals = len(printed.partition(".")[2])
    assert f"{idle_percent(workload(wire_s), schedule):.{decimals}f}" == printed


def test_the_bad_steps_stages_of_all_but_the_first_take_as_long_as_was_seen() -> None:
    assert sum(BAD_TRACE_S[1:]) == pytest.approx(94.9)


@pytest.mark.parametrize("wire_s", [STEADY_S, COMPRESSED_S])
def test_across_the_boundary_all_that_is_left_is_the_very_first_fill(wire_s: tuple[float, ...]) -> None:
    floor = floor_of(workload(wire_s), Schedule.ACROSS)
    assert floor.first_fill_s == pytest.approx(wire_s[0] + 3.9)
    assert floor.idle_s == pytest.approx(floor.first_fill_s)


@pytest.mark.parametrize("wire_s", [STEADY_S, COMPRESSED_S, BAD_TRACE_S])
def test_a_third_place_on_the_host_does_not_help(wire_s: tuple[float, ...]) -> None:
    for schedule in Schedule:
        three = floor_of(workload(wire_s, host_places=3), schedule)
        assert three == floor_of(workload(wire_s, host_places=2), schedule)


def test_two_places_on_the_host_are_three_micro_batches_ahead_of_the_compute() -> None:
    for schedule in Schedule:
        by_places = floor_of(workload(BAD_TRACE_S, host_places=2), schedule)
        assert floor_of(workload(BAD_TRACE_S, host_places=9, ahead=3), schedule) == by_places
    fewer = workload(BAD_TRACE_S, host_places=9, ahead=2)
    assert f"{idle_percent(fewer, Schedule.ACROSS):.1f}" == "6.5"


# --- the rules, on runs that can be followed by hand ---


def test_inline_the_device_waits_for_wire_and_copy_of_each_micro_batch() -> None:
    run = Workload(wire_s=(3.0, 4.0), copy_s=2.0, compute_s=5.0, update_s=1.0, steps=2)
    assert floor_of(run, Schedule.INLINE) == Floor(total_s=44.0, idle_s=22.0, first_fill_s=5.0)


def test_within_a_step_only_its_first_micro_batch_is_waited_for() -> None:
    run = Workload(wire_s=(3.0, 3.0), copy_s=2.0, compute_s=5.0, update_s=1.0, steps=2)
    assert floor_of(run, Schedule.WITHIN) == Floor(total_s=32.0, idle_s=10.0, first_fill_s=5.0)


def test_a_copy_begins_when_the_one_before_computes() -> None:
    run = Workload(wire_s=(1.0,) * 3, copy_s=8.0, compute_s=10.0, update_s=0.0, steps=1)
    # 1 + 8 + 10, and the copies of the second and third lie behind the computes before them.
    assert floor_of(run, Schedule.ACROSS).total_s == 39.0


def test_a_full_host_holds_up_the_wire() -> None:
    run = Workload(wire_s=(4.0,) * 4, copy_s=1.0, compute_s=1.0, update_s=0.0, steps=1, host_places=1)
    # The wire waits for each copy: 4 + 1 for each, and the last compute.
    assert floor_of(run, Schedule.ACROSS).total_s == 21.0


def test_one_ahead_overlaps_nothing_but_the_compute() -> None:
    run = Workload(wire_s=(4.0,) * 3, copy_s=1.0, compute_s=3.0, update_s=0.0, steps=1, host_places=9, ahead=1)
    # Each wire begins with the compute before it: 5 for each, and the last compute.
    assert floor_of(run, Schedule.ACROSS).total_s == 18.0


# Whole seconds: sums of them are exact.
TIMES = st.integers(0, 100)


@given(
    wire_s=st.lists(TIMES, min_size=1, max_size=6).map(tuple),
    copy_s=TIMES,
    compute_s=TIMES,
    update_s=TIMES,
    steps=st.integers(1, 4),
    places=st.integers(1, 4),
)
def test_staging_further_ahead_never_costs_time(
    wire_s: tuple[int, ...], copy_s: int, compute_s: int, update_s: int, steps: int, places: int
) -> None:
    run = Workload(
        wire_s=wire_s,
        copy_s=copy_s,
        compute_s=compute_s,
        update_s=update_s,
        steps=steps,
        host_places=places,
    )
    totals = [floor_of(run, schedule).total_s for schedule in Schedule]
    assert totals == sorted(totals, reverse=True)
    more = dataclasses.replace(run, host_places=places + 1)
    assert floor_of(more, Schedule.ACROSS).total_s <= totals[-1]
    assert totals[-1] >= run.busy_s + wire_s[0] + copy_s


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"wire_s": ()}, "at least one micro-batch"),
        ({"steps": 0}, "steps is too small; got 0; limit 1 or more"),
        ({"host_places": 0}, "host_places is too small"),
        ({"ahead": 0}, "ahead is too small"),
        ({"copy_s": -1.0}, "a time is negative"),
        ({"update_s": float("nan")}, "a time is negative"),
    ],
)
def test_a_run_that_cannot_be_is_an_error(changed: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(workload(), **changed)  # type: ignore[arg-type]
