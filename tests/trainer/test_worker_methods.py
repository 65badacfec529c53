"""What a worker offers of its engine: which methods, what a failure leaves behind, and each key once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from forebay.trainer import AlreadyTrainedError, NotStagedError, StagedEngine
from forebay.trainer.step_clock import StepClock
from forebay.trainer.worker_methods import EngineMethods, Method, registered
from forebay.wire import UsageError, WorkerState

from .device_arrays import number_of, payload
from .engines import HandEngine, staged
from .gate import Gate
from .waiting import WAIT_S, Call

MODES = pytest.mark.parametrize("mode", ["off", "stage", "serialize"])
S = WorkerState


class DeferringEngine(HandEngine):
    def apply_deferred_update(self, **options: Any) -> str:
        self.options.append(options)
        return "applied"


def methods_of(engine: Any, mode: str = "stage") -> tuple[EngineMethods, StagedEngine]:
    wrapped = staged(engine, mode)
    return EngineMethods(wrapped, {"calls": 3}), wrapped


def step(methods: EngineMethods, *arguments: Any, **options: Any) -> tuple[Any, StepClock]:
    clock = StepClock()
    return methods.fwd_bwd(*arguments, stage_clock=clock, **options), clock


def raise_boom(_: Any = None) -> None:
    raise RuntimeError("boom")


def lanes(methods: EngineMethods) -> dict[str, str]:
    return {method.name: method.lane for method in methods.methods()}


# --- which ---


def test_in_stage_the_methods_run_beside_each_other_but_for_the_update() -> None:
    methods, wrapped = methods_of(DeferringEngine())
    with wrapped:
        assert lanes(methods) == {
            "fwd_bwd": "fwd_bwd",
            "stage_batch": "stage_batch",
            "apply_deferred_update": "apply_deferred_update",
            "reset_staged": "reset_staged",
            "metrics": "metrics",
            "update": "",
        }


@pytest.mark.parametrize("mode", ["off", "serialize"])
def test_in_off_and_serialize_all_that_works_on_the_device_shares_one_line(mode: str) -> None:
    methods, wrapped = methods_of(DeferringEngine(), mode)
    with wrapped:
        assert lanes(methods) == {
            "fwd_bwd": "",
            "stage_batch": "",
            "apply_deferred_update": "",
            "reset_staged": "reset_staged",
            "metrics": "metrics",
            "update": "",
        }


def test_only_the_step_takes_a_clock() -> None:
    methods, wrapped = methods_of(DeferringEngine())
    with wrapped:
        assert [method.name for method in methods.methods() if method.is_step] == ["fwd_bwd"]


@pytest.mark.parametrize("attribute", [None, "not callable"])
def test_an_engine_without_a_deferred_update_has_no_method_for_it(attribute: Any) -> None:
    engine = HandEngine()
    engine.apply_deferred_update = attribute  # type: ignore[attr-defined]
    methods, wrapped = methods_of(engine)
    with wrapped:
        assert "apply_deferred_update" not in lanes(methods)


@MODES
def test_updates_are_passed_on_with_their_options(mode: str) -> None:
    engine = DeferringEngine()
    methods, wrapped = methods_of(engine, mode)
    with wrapped:
        offered = {method.name: method.function for method in methods.methods()}
        assert offered["update"](lr=0.5) is None
        assert offered["apply_deferred_update"](scale=2) == "applied"
    assert engine.options == [{"lr": 0.5}, {"scale": 2}]


@pytest.mark.parametrize("name", ["", "1", "a b", "a-b", "a.b", "é "])
def test_the_name_of_a_method_is_an_identifier(name: str) -> None:
    with pytest.raises(UsageError, match="an identifier"):
        registered({}, name, print, concurrent=False)


def test_the_name_of_a_method_is_not_taken_and_the_error_names_those_that_are() -> None:
    taken = {name: Method(name, print) for name in ("fwd_bwd", "mine")}
    with pytest.raises(UsageError, match=r"taken.*got mine.*fwd_bwd, mine"):
        registered(taken, "mine", print, concurrent=False)


def test_what_cannot_be_called_is_no_method() -> None:
    with pytest.raises(UsageError, match="'mine' cannot be called; got int"):
        registered({}, "mine", 3, concurrent=False)  # type: ignore[arg-type]


def test_users_methods_share_the_line_unless_they_are_concurrent() -> None:
    assert registered({}, "mine", print, concurrent=False).lane == ""
    assert registered({}, "mine", print, concurrent=True).lane == "mine"


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


@pytest.mark.parametrize(
    ("tree", "options", "words"),
    [
        ({"x": {1, 2}}, {"key": "k"}, "not registered"),
        (payload(1), {"key": ""}, "key of a micro-batch"),
        (payload(1), {"key": ("a", 1)}, "key of a micro-batch"),
        (payload(1), {"key": "k", "timeout_s": -1}, "timeout"),
        (payload(1), {"key": "k", "colour": "red"}, "unexpected keyword"),
    ],
)
def test_a_staging_that_fails_is_an_answer_with_a_reason(tree: Any, options: dict[str, Any], words: str) -> None:
    methods, wrapped = methods_of(HandEngine())
    with wrapped:
        answer = methods.stage_batch(tree, **options)
        assert answer["staged"] is False
        assert answer["key"] == options["key"]
        assert words in answer["reason"]
        assert methods.state is S.READY
        assert wrapped.queue.keys == ()


def test_a_staging_that_works_says_where_it_is() -> None:
    methods, wrapped = methods_of(HandEngine())
    with wrapped:
        answer = methods.stage_batch(payload(1), key="k")
        assert (answer["staged"], answer["key"], answer["replaced"]) == (True, "k", False)
        assert isinstance(answer["on_device"], bool)
        assert methods.stage_batch(payload(2), key="k")["replaced"]


def test_in_off_nothing_is_staged_and_the_answer_names_the_variable() -> None:
    methods, wrapped = methods_of(HandEngine(), "off")
    with wrapped:
        answer = methods.stage_batch(payload(1), key="k")
        assert not answer["staged"]
        assert "TUNIX_STAGE_BATCH" in answer["reason"]


# --- staging beside a step ---


def test_staging_goes_on_while_a_step_waits_for_the_device() -> None:
    device = Gate("the device")
    methods, wrapped = methods_of(HandEngine(by_hand=True, when_waited_for=device))
    with wrapped:
        methods.stage_batch(payload(1), key="k1")
        call = Call(lambda: step(methods, stage_key="k1"))
        device.wait_until_reached()
        assert methods.stage_batch(payload(2), key="k2")["staged"]
        assert not call.is_done
        device.open()
        call.result()


def test_a_key_that_is_being_trained_cannot_be_staged() -> None:
    inside = Gate("the step")
    methods, wrapped = methods_of(HandEngine(inside=inside))
    with wrapped:
        call = Call(lambda: step(methods, payload(1), stage_key="k"))
        inside.wait_until_reached()
        answer = methods.stage_batch(payload(2), key="k")
        assert not answer["staged"]
        assert "being trained" in answer["reason"]
        inside.open()
        call.result()
        assert not methods.stage_batch(payload(3), key="k")["staged"]
        assert wrapped.queue.keys == ()


def test_no_step_claims_a_key_between_the_look_for_it_and_its_staging() -> None:
    staging = Gate("the staging")
    methods, wrapped = methods_of(HandEngine())
    stage = wrapped.stage_batch

    def held(tree: Any, *, key: str) -> Any:
        staging()
        return stage(tree, key=key)

    wrapped.stage_batch = held  # type: ignore[method-assign, assignment]
    with wrapped:
        call = Call(lambda: methods.stage_batch(payload(1), key="k"))
        staging.wait_until_reached()
        assert not methods._trained.lock.acquire(blocking=False)
        staging.open()
        assert call.result()["staged"]
        step(methods, payload(2), stage_key="k")
        assert wrapped.queue.keys == ()


@pytest.mark.parametrize("has_payload", [True, False])
def test_a_key_that_is_staged_while_its_step_is_called_leaves_nothing_behind(has_payload: bool) -> None:
    engine = HandEngine()
    methods, wrapped = methods_of(engine)

    def train(number: int, barrier: threading.Barrier) -> None:
        barrier.wait(WAIT_S)
        if has_payload:
            step(methods, payload(number), stage_key=f"k{number}")
            return
        try:
            step(methods, stage_key=f"k{number}")
        except NotStagedError:
            step(methods, payload(number), stage_key=f"k{number}")

    def stage(number: int, barrier: threading.Barrier) -> bool:
        barrier.wait(WAIT_S)
        staged: bool = methods.stage_batch(payload(number), key=f"k{number}")["staged"]
        return staged

    with wrapped, ThreadPoolExecutor(2) as pool:
        for number in range(1, 101):
            barrier = threading.Barrier(2)
            done = pool.submit(train, number, barrier), pool.submit(stage, number, barrier)
            for future in done:
                future.result(WAIT_S)
            assert wrapped.queue.keys == (), "it would be trained again"
    assert engine.trained == list(range(1, 101))


# --- times ---


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


def test_the_metrics_hold_the_calls_and_the_queues_numbers() -> None:
    methods, wrapped = methods_of(HandEngine())
    with wrapped:
        methods.stage_batch(payload(1), key="k")
        told = methods.metrics()
        assert (told["state"], told["failure"], told["calls"]) == ("ready", "", {"calls": 3})
        assert told["queue"]["staged"] == 1
