"""The next micro-batch is promoted after each dispatch, beside the step and without its waiting."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import pytest

from forebay.trainer import NotStagedError, Prepared, PromotionError, Queued
from forebay.wire import WaitTimeoutError

from .device_arrays import FullDevice, HeldTransfer, large, live, payload
from .engines import HandEngine, staged, wait_for_on_device
from .waiting import WAIT_S, Watch

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# --- when the next is promoted ---


@pytest.mark.parametrize("mode", ["stage", "serialize"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_next_is_promoted_after_dispatch_by_another_thread_and_the_step_does_not_wait(
    mode: str, fails: bool
) -> None:
    found: list[bool] = []
    transfer = HeldTransfer()
    with staged(HandEngine(), mode, transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)

        def look(_: Any) -> None:
            found.append(watch.has_work())
            if fails:
                raise ArithmeticError("the engine failed")

        wrapped.engine.inside = look  # type: ignore[attr-defined]
        wrapped.stage_batch(payload(1), key="a")
        watch.settle()
        transfer.hold(2)
        wrapped.stage_batch(payload(2), key="b")
        with contextlib.suppress(ArithmeticError):
            wrapped.fwd_bwd(stage_key="a")
        # Had the step waited for that transfer, it would wait still.
        transfer.wait_until_begun()
        assert threading.current_thread() not in transfer.threads
        counts = wrapped.queue.statistics
        assert (counts.in_step, counts.on_device, counts.queued) == (0, 0, 1)
        transfer.let_go()
        watch.settle()
        assert found == [False], "not before dispatch"
        assert wrapped.queue.statistics.on_device == 1


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_step_that_used_nothing_staged_has_the_next_promoted_too(
    is_prepared: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        if fails:
            raise ArithmeticError("the engine failed")

    # What waits to be promoted beside such a step is an entry that did not fit before it.
    device = FullDevice(monkeypatch)
    with staged(HandEngine(inside=fail)) as wrapped:
        watch = Watch(wrapped.queue)
        wrapped.stage_batch(large(1), key="a")
        watch.settle()
        assert device.refused.acquire(timeout=WAIT_S)
        device.is_full = False
        assert not watch.has_work(), "it rests"
        given = Prepared({"x": jax.device_put(payload(2)["x"])}) if is_prepared else payload(2)
        with contextlib.suppress(ArithmeticError):
            wrapped.fwd_bwd(given)
        wait_for_on_device(wrapped.queue, 1)
        counts = wrapped.queue.statistics
        assert (counts.inline_steps, counts.failures, counts.promotions) == (0, 1, 1)
        assert wrapped.queue.keys == ("a",)


def test_after_a_step_whose_own_transfer_failed_the_next_is_promoted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    FullDevice(monkeypatch)
    with staged(HandEngine()) as wrapped:
        watch = Watch(wrapped.queue)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        watch.settle()
        with pytest.raises(PromotionError):
            wrapped.fwd_bwd(large(3), stage_key="a")
        wait_for_on_device(wrapped.queue, 1)
        assert wrapped.queue.keys == ("b",)


def test_an_exception_of_the_engine_reaches_the_caller_and_takes_the_micro_batch_along() -> None:
    def fail(_: Any) -> None:
        raise ArithmeticError("the engine failed")

    engine = HandEngine(inside=fail)
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        with pytest.raises(ArithmeticError, match="the engine failed"):
            wrapped.fwd_bwd(stage_key="a")
        engine.inside = None
        with pytest.raises(NotStagedError):
            wrapped.fwd_bwd(stage_key="a")
        wrapped.fwd_bwd(stage_key="b")
        assert engine.trained == [1, 2]
        wait_for_on_device(wrapped.queue, 0)


@pytest.mark.parametrize("is_on_device", [True, False])
def test_dropping_an_entry_starts_no_transfer_that_the_step_must_wait_for(
    is_on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer = HeldTransfer()
    found: list[bool] = []
    with staged(HandEngine(), transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)
        wrapped.stage_batch(payload(1), key="a")
        watch.settle()
        wrapped.stage_batch(payload(2), key="b")
        state = wrapped.queue._parts

        class LinkOfAStep:
            """The transfer lock, seen at the moment in which the step asks for it."""

            def acquire(self, timeout: float) -> bool:
                found.append(watch.has_work())
                return link.acquire(timeout=timeout)

            def release(self) -> None:
                link.release()

        link = state.link
        monkeypatch.setattr(state, "link", LinkOfAStep())
        dropped = "a" if is_on_device else "b"
        wrapped.fwd_bwd(payload(3, more=True), stage_key=dropped)
        assert found == [False]
        watch.settle()
        assert transfer.issued == ([1, 3, 2] if is_on_device else [1, 3])


def test_an_entry_that_is_dropped_for_a_payload_is_off_the_device_before_that_comes(
    others: ThreadPoolExecutor,
) -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(2)
        step: Future[Any] = others.submit(wrapped.fwd_bwd, payload(2, more=True), stage_key="a")
        transfer.wait_until_begun()
        assert live() == [2]
        transfer.let_go()
        step.result(WAIT_S)


# --- the locks ---


def test_an_entry_on_the_device_is_popped_while_another_transfer_runs() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, cap=2, transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(2)
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        wrapped.fwd_bwd(stage_key="a", stage_timeout_s=0)
        assert engine.trained == [1]
        # The bookkeeping lock is free all the while, too.
        assert wrapped.stage_batch(payload(3), key="c") == Queued("c", on_device=False, replaced=False)
        assert wrapped.queue.keys == ("b", "c")
        assert "promoting 'b'" in repr(wrapped)
        assert wrapped.queue.statistics.promotions == 1
        transfer.let_go()
        wait_for_on_device(wrapped.queue, 2)


def test_a_popped_entry_that_is_the_same_as_the_payload_does_not_wait_either() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, cap=2, transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(2)
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        wrapped.fwd_bwd(payload(1), stage_key="a", stage_timeout_s=0)
        assert engine.trained == [1]
        transfer.let_go()


def test_one_transfer_runs_at_a_time(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, cap=0, transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        with pytest.raises(WaitTimeoutError, match="the transfer under way to end"):
            wrapped.fwd_bwd(payload(3), stage_timeout_s=0)
        assert transfer.issued == [1]
        inline = others.submit(wrapped.fwd_bwd, payload(4))
        transfer.let_go()
        inline.result(WAIT_S)
        wait_for_on_device(wrapped.queue, 2)
        assert sorted(transfer.issued) == [1, 2, 4]
        assert engine.trained == [4]
