"""What a worker tells of a step's times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forebay.trainer.step_clock import StepClock

from .device_arrays import payload
from .engine_methods import methods_of, raise_boom, step
from .engines import HandEngine


class FakeTime:
    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime(100.0)
    monkeypatch.setattr("forebay.trainer.worker_methods.time", fake)
    monkeypatch.setattr("forebay.trainer.step_clock.time", fake)
    return fake


Moves = Callable[[float], Callable[[Any], None]]


@pytest.fixture
def takes(time: FakeTime) -> Moves:
    def takes(seconds: float) -> Callable[[Any], None]:
        def move(_: Any) -> None:
            time.now += seconds

        return move

    return takes


def test_times_tell_the_wait_the_dispatch_and_when_the_device_was_done(time: FakeTime, takes: Moves) -> None:
    engine = HandEngine(by_hand=True, inside=takes(2), when_waited_for=lambda: takes(5)(None))
    methods, wrapped = methods_of(engine)
    with wrapped:
        clock = StepClock(asked_at=90.0)
        methods.fwd_bwd(payload(1), stage_clock=clock)
        times = methods.times(clock)
    assert (times.wait_s, times.dispatch_s, times.ready_s, times.idle_s) == (10.0, 2.0, 7.0, 0.0)
    assert time.now == 107.0


def test_the_device_is_idle_from_the_end_of_a_step_until_the_next_dispatch(time: FakeTime, takes: Moves) -> None:
    engine = HandEngine(inside=takes(2))
    methods, wrapped = methods_of(engine)
    with wrapped:
        methods.times(step(methods, payload(1))[1])
        time.now += 3
        assert methods.times(step(methods, payload(2))[1]).idle_s == 3.0


@pytest.mark.parametrize("what", ["update", "failed step"])
def test_other_work_of_the_device_is_no_idle_time(time: FakeTime, takes: Moves, what: str) -> None:
    def takes_and_fails(batch: Any) -> None:
        takes(50)(batch)
        raise_boom()

    engine = HandEngine(inside=takes(2))
    methods, wrapped = methods_of(engine)
    with wrapped:
        methods.times(step(methods, payload(1))[1])
        time.now += 50
        if what == "update":
            methods._hand_over(lambda: takes(50)(None))
        else:
            engine.inside = takes_and_fails
            with pytest.raises(RuntimeError):
                step(methods, payload(2))
            engine.inside = takes(2)
        time.now += 4
        assert methods.times(step(methods, payload(3))[1]).idle_s == 4.0
