"""Staging overlaps transfers with the device's work; serialized they take turns."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from forebay.trainer import Queued
from forebay.wire import WaitTimeoutError

from .device_arrays import HeldTransfer, live, payload
from .engines import CAPS, HandEngine, staged, wait_for_on_device
from .waiting import WAIT_S, Watch

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_stage_returns_before_the_transfer_is_complete() -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), transfer=transfer) as wrapped:
        transfer.hold(1)
        assert wrapped.stage_batch(payload(1), key="a") == Queued("a", on_device=False, replaced=False)
        transfer.wait_until_begun()
        assert wrapped.queue.statistics.promotions == 0
        transfer.let_go()
        wait_for_on_device(wrapped.queue, 1)


@CAPS
def test_serialize_returns_only_when_the_transfer_is_complete(cap: int, others: ThreadPoolExecutor) -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), "serialize", cap, transfer=transfer) as wrapped:
        transfer.hold(1)
        staging = others.submit(wrapped.stage_batch, payload(1), key="a")
        transfer.wait_until_begun()
        assert not staging.done()
        transfer.let_go()
        assert staging.result(WAIT_S) == Queued("a", on_device=True, replaced=False)
        assert wrapped.queue.statistics.promotions == 1


def test_serialize_returns_at_once_where_there_is_no_room() -> None:
    with staged(HandEngine(), "serialize", 1) as wrapped:
        assert wrapped.stage_batch(payload(1), key="a") == Queued("a", on_device=True, replaced=False)
        assert wrapped.stage_batch(payload(2), key="b") == Queued("b", on_device=False, replaced=False)
        assert wrapped.stage_batch(payload(3), key="a") == Queued("a", on_device=True, replaced=True)
        assert live() == [3]


@CAPS
@pytest.mark.parametrize("work", ["a staged step", "an inline step", "an update"])
def test_serialize_transfers_only_when_the_device_has_finished_what_was_dispatched(
    work: str, cap: int, others: ThreadPoolExecutor
) -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "serialize", cap, transfer=transfer) as wrapped:
        if work == "a staged step":
            wrapped.stage_batch(payload(1), key="a")
            wrapped.fwd_bwd(stage_key="a")
        elif work == "an inline step":
            wrapped.fwd_bwd(payload(1))
        else:
            wrapped.fwd_bwd(payload(1))
            engine.work[0].finish()
            wrapped.update()
        staging = others.submit(wrapped.stage_batch, payload(2), key="b")
        assert engine.work[-1].waited_for.wait(WAIT_S), "the transfer did not wait for the device"
        assert transfer.issued == [1]
        assert not staging.done()
        engine.work[-1].finish()
        assert staging.result(WAIT_S) == Queued("b", on_device=True, replaced=False)
        assert transfer.issued == [1, 2]


def test_serialize_waits_for_all_that_was_dispatched(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "serialize", transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(stage_key="a")
        wrapped.update()
        wrapped.update()
        staging: Future[Any] = others.submit(wrapped.stage_batch, payload(2), key="b")
        for work in engine.work:
            assert work.waited_for.wait(WAIT_S)
            assert transfer.issued == [1]
            work.finish()
        assert staging.result(WAIT_S).on_device


def test_serialize_lets_a_steps_own_payload_wait_for_the_device_as_well(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "serialize", transfer=transfer) as wrapped:
        wrapped.fwd_bwd(payload(1))
        inline = others.submit(wrapped.fwd_bwd, payload(2))
        assert engine.work[0].waited_for.wait(WAIT_S)
        assert transfer.issued == [1]
        engine.work[0].finish()
        inline.result(WAIT_S)
        assert transfer.issued == [1, 2]
        engine.work[1].finish()


def test_serialize_hands_nothing_to_the_device_while_a_transfer_runs(others: ThreadPoolExecutor) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, "serialize", 2, transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        transfer.hold(2)
        staging: Future[Any] = others.submit(wrapped.stage_batch, payload(2), key="b")
        transfer.wait_until_begun()
        with pytest.raises(WaitTimeoutError, match="the transfer under way to end before work is handed"):
            wrapped.update(stage_timeout_s=0)
        with pytest.raises(WaitTimeoutError, match="the transfer under way to end before work is handed"):
            wrapped.fwd_bwd(stage_key="a", stage_timeout_s=0)
        assert engine.options == []
        transfer.let_go()
        assert staging.result(WAIT_S).on_device
        wrapped.update()
        wrapped.fwd_bwd(stage_key="b")
        assert engine.trained == [2]


def test_serialize_begins_no_transfer_while_work_is_handed_to_the_device() -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), "serialize", 2, transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)
        found: list[bool] = []

        def stage_and_look(_: Any) -> None:
            # It does not wait for its own dispatch to end.
            wrapped.stage_batch(payload(2), key="b")
            found.append(watch.has_work())

        wrapped.stage_batch(payload(1), key="a")
        wrapped.engine.inside = stage_and_look  # type: ignore[attr-defined]
        wrapped.fwd_bwd(stage_key="a")
        assert found == [False]
        watch.settle()
        assert transfer.issued == [1, 2]


def test_stage_overlaps_transfer_and_work() -> None:
    engine, transfer = HandEngine(by_hand=True), HeldTransfer()
    with staged(engine, "stage", transfer=transfer) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(stage_key="a")
        wrapped.stage_batch(payload(2), key="b")
        wait_for_on_device(wrapped.queue, 1)
        transfer.hold(3)
        wrapped.stage_batch(payload(3), key="c")
        assert not engine.work[0].is_ready()
        engine.work[0].finish()
        wrapped.fwd_bwd(stage_key="b")
        transfer.wait_until_begun()
        wrapped.update()
        transfer.let_go()
        engine.work[1].finish()
