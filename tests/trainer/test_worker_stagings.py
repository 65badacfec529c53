"""Staging by a worker's methods: what it answers, and what happens beside a step."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from forebay.trainer import NotStagedError
from forebay.wire import WorkerState

from .device_arrays import payload
from .engine_methods import methods_of, step
from .engines import HandEngine
from .gate import Gate
from .waiting import WAIT_S, Call

S = WorkerState


# --- answers ---


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
