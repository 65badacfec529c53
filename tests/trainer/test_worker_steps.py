"""Steps by a worker's methods: what is trained, each key once, and what a failure leaves behind."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from forebay.trainer import AlreadyTrainedError, NotStagedError
from forebay.trainer.step_clock import StepClock
from forebay.wire import WorkerState

from .device_arrays import number_of, payload
from .engine_methods import MODES, methods_of, raise_boom, step
from .engines import HandEngine
from .gate import Gate
from .waiting import Call

S = WorkerState


# --- steps ---


@MODES
def test_a_step_trains_its_payload_and_tells_the_clock(mode: str) -> None:
    engine = HandEngine()
    methods, wrapped = methods_of(engine, mode)
    with wrapped:
        _, clock = step(methods, payload(1), stage_key="k", scale=2)
        times = methods.times(clock)
    assert engine.trained == [1]
    assert engine.options == [{"scale": 2}]
    assert (times.key, times.is_staged, times.idle_s) == ("k", False, 0.0)
    assert min(times.wait_s, times.dispatch_s, times.ready_s) >= 0


def test_a_step_trains_what_is_staged_and_says_so() -> None:
    engine = HandEngine()
    methods, wrapped = methods_of(engine)
    with wrapped:
        assert methods.stage_batch(payload(1), key="k")["staged"]
        _, clock = step(methods, stage_key="k")
        assert methods.times(clock).is_staged
    assert engine.trained == [1]


@MODES
def test_a_step_returns_when_the_device_is_done(mode: str) -> None:
    device = Gate("the device")
    engine = HandEngine(by_hand=True, when_waited_for=device)
    methods, wrapped = methods_of(engine, mode)
    with wrapped:
        call = Call(lambda: step(methods, payload(1)))
        device.wait_until_reached()
        assert not call.is_done
        device.open()
        outputs, _ = call.result()
        assert outputs is engine.work[0]


@MODES
def test_a_key_is_trained_once(mode: str) -> None:
    engine = HandEngine()
    methods, wrapped = methods_of(engine, mode)
    with wrapped:
        step(methods, payload(1), stage_key="k")
        for number in range(2, 5):
            with pytest.raises(AlreadyTrainedError):
                step(methods, payload(number), stage_key="k")
        assert methods.state is S.READY
    assert engine.trained == [1]


@MODES
def test_a_key_may_come_again_after_a_step_that_failed(mode: str) -> None:
    engine = HandEngine(inside=raise_boom)
    methods, wrapped = methods_of(engine, mode)
    with wrapped:
        with pytest.raises(RuntimeError, match="boom"):
            step(methods, payload(1), stage_key="k")
        engine.inside = None
        step(methods, payload(2), stage_key="k")
        with pytest.raises(AlreadyTrainedError):
            step(methods, payload(3), stage_key="k")
    assert engine.trained == [1, 2]


def test_a_key_that_came_with_the_next_micro_batch_is_trained_once_too() -> None:
    engine = HandEngine()
    methods, wrapped = methods_of(engine)
    with wrapped:
        methods.stage_batch(payload(1), key="k")
        step(methods)
        with pytest.raises(AlreadyTrainedError):
            step(methods, payload(2), stage_key="k")
        assert not methods.stage_batch(payload(3), key="k")["staged"]
        # As if it had been staged between the look for its key and the step.
        wrapped.stage_batch(payload(4), key="k")
        with pytest.raises(AlreadyTrainedError):
            step(methods)
        assert wrapped.queue.keys == (), "it must not be the next one for ever"
        assert methods.state is S.READY
    assert engine.trained == [1]


# --- failures ---


def test_a_step_that_never_reached_the_engine_leaves_the_worker_ready() -> None:
    methods, wrapped = methods_of(HandEngine())
    with wrapped:
        clock = StepClock()
        with pytest.raises(NotStagedError):
            methods.fwd_bwd(stage_key="absent", stage_clock=clock)
        assert clock.began_at is None
        assert (methods.state, methods.failure) == (S.READY, "")
        methods.stage_batch(payload(1), key="absent")
        step(methods, stage_key="absent")


@MODES
@pytest.mark.parametrize("cure", ["a step", "a reset"])
def test_a_step_that_failed_leaves_the_worker_failed_until_one_succeeds_or_a_reset(mode: str, cure: str) -> None:
    engine = HandEngine(inside=raise_boom)
    methods, wrapped = methods_of(engine, mode)
    with wrapped:
        with pytest.raises(RuntimeError):
            step(methods, payload(1))
        assert (methods.state, methods.failure) == (S.FAILED, "fwd_bwd: RuntimeError: boom")
        assert methods.metrics()["state"] == "failed"
        assert methods.metrics()["failure"] == "fwd_bwd: RuntimeError: boom"
        engine.inside = None
        if cure == "a step":
            step(methods, payload(2))
        else:
            methods.reset_staged()
        assert (methods.state, methods.failure) == (S.READY, "")


def test_work_of_a_step_that_fails_on_the_device_is_a_failed_step() -> None:
    def fail(_: Any) -> Any:
        raise ValueError("the device failed")

    @jax.jit
    def work(x: jax.Array) -> Any:
        return jax.pure_callback(fail, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    class Engine(HandEngine):
        def fwd_bwd(self, batch: Any, **_: Any) -> Any:
            self.trained.append(number_of(batch))
            return work(jnp.ones(3)) if len(self.trained) == 1 else None

    methods, wrapped = methods_of(Engine())
    with wrapped:
        with pytest.raises(Exception, match="the device failed"):
            step(methods, payload(1), stage_key="k")
        assert methods.failure
        step(methods, payload(1), stage_key="k")
        assert methods.state is S.READY


@MODES
@pytest.mark.parametrize("name", ["update", "apply_deferred_update"])
def test_an_update_that_failed_leaves_the_worker_failed(mode: str, name: str) -> None:
    class Engine(HandEngine):
        def update(self, **_: Any) -> None:
            raise RuntimeError("boom")

        apply_deferred_update = update

    methods, wrapped = methods_of(Engine(), mode)
    with wrapped:
        offered = {method.name: method.function for method in methods.methods()}
        with pytest.raises(RuntimeError):
            offered[name]()
        assert methods.state is S.FAILED
        assert methods.failure == "update: RuntimeError: boom"
