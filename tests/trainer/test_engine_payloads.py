"""A payload and a key: the staged one is used if it is the same kind, and the others keep their order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import NotStagedError, steps
from forebay.trainer.step_clock import StepClock

from .device_arrays import SHAPE, HeldTransfer, live, payload
from .engines import CAPS, HandEngine, staged, wait_until_wanted
from .waiting import WAIT_S, Watch

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The warnings about payloads that are not what was staged, in a process that has not given any."""
    monkeypatch.setattr(steps.mismatch_warning, "_was_given", False)
    caplog.set_level(logging.WARNING, "forebay.trainer")
    return lambda: [text for text in caplog.messages if text.startswith("STAGE_MISMATCH")]


# --- what leaves the others alone ---


def test_a_keyless_payload_touches_nothing_that_is_staged() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        watch = Watch(wrapped.queue)
        for number, key in enumerate("abc"):
            wrapped.stage_batch(payload(number), key=key)
        watch.settle()
        before = wrapped.queue.statistics
        # The very same micro-batch as the head, too.
        for number in (7, 0):
            wrapped.fwd_bwd(payload(number))
            watch.settle()
            assert wrapped.queue.keys == ("a", "b", "c")
            assert live() == [0]
        after = wrapped.queue.statistics
        assert (after.queued, after.on_device, after.promotions) == (2, 1, before.promotions)
        assert (after.taken, after.drops, after.inline) == (0, {}, {"keyless": 2})
        for _ in range(3):
            wrapped.fwd_bwd()
        assert engine.trained == [7, 0, 0, 1, 2]


@CAPS
def test_a_key_that_is_not_the_head_is_found_and_the_others_keep_their_order(cap: int) -> None:
    engine = HandEngine()
    with staged(engine, cap=cap) as wrapped:
        for number in range(6):
            wrapped.stage_batch(payload(number), key=str(number))
        wrapped.fwd_bwd(stage_key="3")
        assert ",".join(wrapped.queue.keys) == "0,1,2,4,5"
        wrapped.fwd_bwd(payload(5), stage_key="5")
        assert ",".join(wrapped.queue.keys) == "0,1,2,4"
        for _ in range(4):
            wrapped.fwd_bwd()
        assert engine.trained == [3, 5, 0, 1, 2, 4]
        assert not wrapped.queue.statistics.inline


# --- a payload and a key ---


DIFFERENT: dict[str, Any] = {
    "another leaf": {"x": payload(1)["x"], "policy": 7, "more": np.zeros(1, np.float32)},
    "no static value": {"x": payload(1)["x"]},
    "another shape": {"x": np.full((*SHAPE, 1), 1, np.float32), "policy": 7},
    "fewer rows": {"x": np.full((4, SHAPE[1]), 1, np.float32), "policy": 7},
    "another dtype": {"x": np.full(SHAPE, 1, np.int32), "policy": 7},
    "another static value": {"x": payload(1)["x"], "policy": 8},
    "an equal static value of another type": {"x": payload(1)["x"], "policy": 7.0},
    "a leaf for a static value": {"x": payload(1)["x"], "policy": np.array(7, np.int32)},
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("is_on_device", [True, False])
def test_a_payload_that_is_not_what_was_staged_is_transferred_and_the_entry_dropped(
    what: str, is_on_device: bool, warned: Callable[[], list[str]]
) -> None:
    got: list[Any] = []
    with staged(HandEngine(inside=got.append)) as wrapped:
        watch = Watch(wrapped.queue)
        keys = ("a", "b") if is_on_device else ("b", "a")
        for key in keys:
            wrapped.stage_batch(payload(1), key=key)
        watch.settle()
        wrapped.fwd_bwd(DIFFERENT[what], stage_key="a")
        (batch,) = got
        assert batch.keys() == DIFFERENT[what].keys()
        for used, given in zip(jax.tree.leaves(batch), jax.tree.leaves(DIFFERENT[what]), strict=True):
            assert isinstance(used, jax.Array) == isinstance(given, np.ndarray)
            assert type(used) is type(given) or (used.dtype, used.shape) == (given.dtype, given.shape)
            assert np.asarray(used).tolist() == np.asarray(given).tolist()
        got.clear()
        del batch, used
        counts = wrapped.queue.statistics
        assert (counts.taken, counts.drops, counts.inline) == (0, {"mismatch": 1}, {"mismatch": 1})
        assert wrapped.queue.keys == ("b",)
        assert len(warned()) == 1


@pytest.mark.parametrize("is_on_device", [True, False])
def test_a_payload_with_the_same_structure_uses_what_was_staged_whatever_its_values(
    is_on_device: bool, warned: Callable[[], list[str]]
) -> None:
    engine = HandEngine()
    nan = float("nan")
    with staged(engine, transfer=(transfer := HeldTransfer())) as wrapped:
        watch = Watch(wrapped.queue)
        for key in ("a", "b") if is_on_device else ("b", "a"):
            wrapped.stage_batch(payload(1, reward=nan), key=key)
        watch.settle()
        same = {"reward": nan, "policy": 7, "x": np.full((*SHAPE[::-1],), 5, np.float32).T}
        wrapped.fwd_bwd(same, stage_key="a")
        assert engine.trained == [1]
        assert set(transfer.issued) == {1}
        counts = wrapped.queue.statistics
        assert (counts.taken, counts.drops, counts.inline) == (1, {}, {})
    assert warned() == []


def test_a_process_warns_of_payloads_that_differ_once(warned: Callable[[], list[str]]) -> None:
    for _ in range(2):
        with staged(HandEngine()) as wrapped:
            for key in "ab":
                wrapped.stage_batch(payload(1), key=key)
                wrapped.fwd_bwd(payload(2, more=key), stage_key=key)
            assert wrapped.queue.statistics.drops == {"mismatch": 2}
    assert len(warned()) == 1
    assert "key=a " in warned()[0]


def test_a_key_that_is_not_staged_is_an_error_that_names_it_and_those_present() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        for number, key in enumerate(("first", "second")):
            wrapped.stage_batch(payload(number), key=key)
        with pytest.raises(NotStagedError) as caught:
            wrapped.fwd_bwd(stage_key="third")
        assert "no micro-batch with the key 'third' is staged" in str(caught.value)
        assert "['first', 'second']" in str(caught.value)
        assert engine.options == []
        assert wrapped.queue.keys == ("first", "second")


def test_a_payload_whose_key_is_not_staged_is_transferred_and_counted(warned: Callable[[], list[str]]) -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(payload(2), stage_key="b")
        assert engine.trained == [2]
        counts = wrapped.queue.statistics
        assert (counts.inline, counts.drops, wrapped.queue.keys) == ({"missing": 1}, {}, ("a",))
    assert warned() == []


def test_an_entry_that_was_replaced_while_a_step_waited_for_it_is_compared_too(
    others: ThreadPoolExecutor, warned: Callable[[], list[str]]
) -> None:
    got: list[list[str]] = []
    engine, transfer = HandEngine(inside=lambda batch: got.append(list(batch))), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        step: Future[Any] = others.submit(wrapped.fwd_bwd, payload(1), stage_key="a")
        wait_until_wanted(wrapped, "a")
        wrapped.stage_batch(payload(2, more=np.zeros(1, np.float32)), key="a")
        transfer.let_go()
        step.result(WAIT_S)
        assert got == [["x", "policy"]], "the engine got another kind of micro-batch than the payload"
        assert engine.trained == [1]
        assert wrapped.queue.statistics.drops == {"replaced": 1, "mismatch": 1}
        assert len(warned()) == 1


@pytest.mark.parametrize("given", [None, payload(1)], ids=["key", "payload"])
def test_a_step_that_is_given_up_ends_though_its_micro_batch_is_still_on_its_way(
    others: ThreadPoolExecutor, given: Any
) -> None:
    engine, transfer, clock = HandEngine(), HeldTransfer(), StepClock()
    with staged(engine, transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        step: Future[Any] = others.submit(wrapped.fwd_bwd, given, stage_key="a", stage_clock=clock)
        wait_until_wanted(wrapped, "a")
        clock.is_given_up = True
        wrapped.queue.look_again()
        try:
            assert "given up" in str(step.exception(WAIT_S))
        finally:
            transfer.let_go()
        assert (engine.trained, clock.began_at) == ([], None)
        assert wrapped.queue.keys == ("a",)


def test_a_payload_whose_entry_was_dropped_while_the_step_waited_for_it_is_transferred(
    others: ThreadPoolExecutor,
) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        step: Future[Any] = others.submit(wrapped.fwd_bwd, payload(2), stage_key="a")
        wait_until_wanted(wrapped, "a")
        wrapped.reset_staged()
        transfer.let_go()
        step.result(WAIT_S)
        assert engine.trained == [2]
        assert wrapped.queue.statistics.inline == {"missing": 1}
