"""Methods on threads: whatever becomes of one, its call gets an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from forebay.trainer.call_books import CallBooks
from forebay.trainer.call_limits import CallLimits
from forebay.trainer.call_record import Address, CallRecord
from forebay.trainer.call_runner import CallRunner
from forebay.trainer.events import StepDone
from forebay.trainer.inline_payloads import InlinePayloads
from forebay.trainer.worker_methods import EngineMethods
from forebay.wire import (
    CallId,
    CallState,
    Limits,
    PackedTree,
    Raised,
    Returned,
    TreeRegistry,
    UsageError,
    WorkerState,
    default_registry,
    encode_message,
    pack,
    unpack,
)

from .device_arrays import payload
from .engines import HandEngine, staged
from .gate import Gate
from .waiting import WAIT_S

LIMITS = Limits()
Answered = Returned | Raised


class Desk:
    """A runner, and calls for it."""

    def __init__(self, mode: str = "stage", registry: TreeRegistry = default_registry) -> None:
        self.engine = HandEngine()
        self.wrapped = staged(self.engine, mode)
        books = CallBooks("", CallLimits(LIMITS))
        self.methods = EngineMethods(self.wrapped, books.counters)
        self.runner = CallRunner(
            self.methods,
            InlinePayloads(books),
            registry=registry,
            limits=LIMITS,
            max_answer_bytes=4096,
        )

    def begin(self, method: str, options: Any, *, complete_at: float = 0.0) -> Future[Answered]:
        packed = (
            options if isinstance(options, PackedTree) else pack(options, registry=default_registry, limits=LIMITS)
        )
        call = CallRecord(CallId("c", 1), method, "", Address(b""), 1, 0.0, CallState.RUNNING, complete_at, packed)
        future: Future[Answered] = Future()
        self.runner.run(call, future.set_result)
        return future

    def run(self, method: str, **options: Any) -> Answered:
        return self.begin(method, options).result(WAIT_S)

    def raised(self, method: str, **options: Any) -> Raised:
        answer = self.run(method, **options)
        assert isinstance(answer, Raised)
        assert encode_message(answer), "it travels"
        return answer

    def returned(self, method: str, **options: Any) -> Any:
        return value_of(self.run(method, **options))


def value_of(answer: Answered) -> Any:
    assert isinstance(answer, Returned), answer
    assert answer.value is not None, answer.omitted
    return unpack(answer.value, registry=default_registry, limits=LIMITS)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    with desk.wrapped:
        yield desk
        desk.runner.close()
        for crew in desk.runner._crews.values():
            for thread in crew._threads:
                thread.join(WAIT_S)
                assert not thread.is_alive(), thread


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


# --- what it is called with ---


def test_a_method_gets_its_options_and_its_value_comes_back(desk: Desk) -> None:
    desk.runner.register("mine", lambda **options: options, concurrent=False)
    value = desk.returned("mine", a=1, b=("x", None), c=np.arange(3))
    assert (value["a"], value["b"]) == (1, ("x", None))
    np.testing.assert_array_equal(value["c"], np.arange(3))


@pytest.mark.parametrize("options", [[1], "text", None, {1: 2}])
def test_options_that_are_no_options_are_an_answer(desk: Desk, options: Any) -> None:
    desk.runner.register("mine", lambda: None, concurrent=False)
    answer = desk.begin("mine", options).result(WAIT_S)
    assert isinstance(answer, Raised)
    assert (answer.kind, answer.began) == ("ProtocolError", False)


@pytest.mark.parametrize("packed", [PackedTree(b"\xff", b""), PackedTree(b"", b"")])
def test_options_that_cannot_be_unpacked_are_an_answer(desk: Desk, packed: PackedTree) -> None:
    desk.runner.register("mine", lambda: None, concurrent=False)
    answer = desk.begin("mine", packed).result(WAIT_S)
    assert isinstance(answer, Raised)
    assert (answer.kind, answer.began) == ("TreeError", False)


@pytest.mark.parametrize("method", ["fwd_bwd", "mine"])
def test_nobody_passes_a_clock_from_outside(desk: Desk, method: str) -> None:
    desk.runner.register("mine", lambda **_: None, concurrent=False)
    answer = desk.raised(method, stage_clock=1)
    assert (answer.kind, answer.began) == ("UsageError", False)
    assert desk.engine.trained == []


def test_a_step_counts_its_wait_from_the_moment_in_which_it_was_complete(desk: Desk) -> None:
    desk.methods.stage_batch(payload(1), key="k")
    answer = desk.begin("fwd_bwd", {"stage_key": "k"}, complete_at=-1000.0).result(WAIT_S)
    assert isinstance(answer, Returned)
    assert answer.times is not None
    assert answer.times.wait_s > 1000
    assert (answer.times.key, answer.times.is_staged) == ("k", True)


def test_only_steps_are_answered_with_times(desk: Desk) -> None:
    answer = desk.run("metrics")
    assert isinstance(answer, Returned)
    assert answer.times is None


def test_a_step_that_is_done_is_logged_with_its_times(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forebay.trainer")
    desk.methods.stage_batch(payload(1), key="k")
    answer = desk.run("fwd_bwd", stage_key="k")
    [event] = [record.event for record in caplog.records if isinstance(getattr(record, "event", None), StepDone)]  # type: ignore[attr-defined]
    assert isinstance(answer, Returned)
    assert event.times == answer.times


# --- what becomes of it ---


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), AssertionError()])
def test_whatever_a_method_raises_is_an_answer(desk: Desk, error: BaseException) -> None:
    desk.runner.register("mine", failing(error), concurrent=False)
    answer = desk.raised("mine")
    assert answer.kind == type(error).__name__
    assert answer.words.startswith(answer.kind)
    assert "in fail\n    raise error" in answer.traceback
    assert (answer.began, answer.state) == (True, WorkerState.READY)
    assert desk.returned("metrics")["state"] == "ready"


def test_the_traceback_tells_causes_too(desk: Desk) -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    desk.runner.register("mine", fail, concurrent=False)
    told = desk.raised("mine").traceback
    assert told.index("KeyError: 'first'") < told.index("direct cause") < told.index("ValueError: second")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class UntraceableError(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise ValueError("no notes")


@pytest.mark.parametrize(
    "error",
    [
        OSError("cannot open 'x\udcff'"),
        ValueError("\ud800" * 100),
        ValueError("\x1b[31mred"),
        UnspeakableError(),
        UntraceableError("x"),
        ValueError("x" * 1_000_000),
        UsageError("no", got="\udcff"),
    ],
)
def test_an_error_whose_words_cannot_travel_as_they_are_is_an_answer(desk: Desk, error: Exception) -> None:
    desk.runner.register("mine", failing(error), concurrent=False)
    answer = desk.raised("mine")
    assert answer.kind == type(error).__name__
    assert len(answer.words) < 300
    assert answer.words.isprintable()
    assert len(answer.traceback) < 200_000
    assert answer.traceback


@pytest.mark.parametrize("value", [{1: 2, "a": 3}, object(), np.zeros(5000, np.uint8), "x" * 5000, "\ud800"])
def test_a_value_that_does_not_travel_is_an_answer_with_a_reason(desk: Desk, value: Any) -> None:
    desk.runner.register("mine", lambda: value, concurrent=False)
    answer = desk.run("mine")
    assert isinstance(answer, Returned)
    assert answer.value is None
    assert 0 < len(answer.omitted) < 300
    assert answer.omitted.isprintable()


def test_a_step_that_never_reached_the_engine_has_not_begun(desk: Desk) -> None:
    answer = desk.raised("fwd_bwd", stage_key="absent")
    assert (answer.kind, answer.began, answer.state) == ("NotStagedError", False, WorkerState.READY)


def test_a_step_that_reached_the_engine_has_begun(desk: Desk) -> None:
    desk.methods.stage_batch(payload(1), key="k")
    desk.engine.inside = lambda _: failing(ValueError("no"))()
    answer = desk.raised("fwd_bwd", stage_key="k")
    assert (answer.kind, answer.began, answer.state) == ("ValueError", True, WorkerState.FAILED)


def test_a_step_whose_key_was_trained_must_not_be_taken_for_one_that_may_be_passed_again(desk: Desk) -> None:
    desk.methods.stage_batch(payload(1), key="k")
    assert isinstance(desk.run("fwd_bwd", stage_key="k"), Returned)
    answer = desk.raised("fwd_bwd", stage_key="k")
    assert (answer.kind, answer.began, answer.state) == ("AlreadyTrainedError", True, WorkerState.READY)


def test_a_wrong_option_is_an_answer(desk: Desk) -> None:
    desk.runner.register("mine", lambda a: a, concurrent=False)
    assert "unexpected keyword argument 'b'" in desk.raised("mine", b=1).words


# --- threads ---


def test_methods_that_share_the_line_share_a_thread_and_the_others_have_their_own(desk: Desk) -> None:
    gate = Gate("the concurrent methods")
    barrier = threading.Barrier(2, lambda: gate())

    def concurrent() -> str:
        barrier.wait(WAIT_S)
        return threading.current_thread().name

    for name in ("one", "other"):
        desk.runner.register(name, concurrent, concurrent=True)
    for name in ("third", "fourth"):
        desk.runner.register(name, lambda: threading.current_thread().name, concurrent=False)
    futures = [desk.begin(name, {}) for name in ("one", "other")]
    gate.wait_until_reached()
    assert desk.returned("third") == desk.returned("fourth") == "forebay-worker-serial-0"
    gate.open()
    assert {value_of(future.result(WAIT_S)) for future in futures} == {"forebay-worker-0", "forebay-worker-1"}


def test_as_many_concurrent_methods_as_there_are_run_beside_each_other(desk: Desk) -> None:
    names = [f"method{index}" for index in range(6)]
    gates = [Gate(name) for name in names]
    for name, gate in zip(names, gates, strict=True):
        desk.runner.register(name, gate, concurrent=True)
    futures = [desk.begin(name, {}) for name in names]
    for gate in gates:
        gate.wait_until_reached()
    assert isinstance(desk.run("metrics"), Returned)
    for gate in gates:
        gate.open()
    for future in futures:
        future.result(WAIT_S)


def test_a_thread_that_cannot_be_had_is_an_answer_and_leaves_nothing_behind(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patches:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patches.setattr(threading.Thread, "start", refuse)
        answer = desk.raised("metrics")
    assert (answer.kind, answer.began) == ("HostError", False)
    assert "can't start new thread" in answer.words
    assert desk.runner._clocks == {}
    assert isinstance(desk.run("metrics"), Returned)
