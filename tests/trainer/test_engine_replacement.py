"""What is replaced or reset is off the device and out of the counts, and all else stays."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from forebay.trainer import NotStagedError, Queued

from .device_arrays import HeldTransfer, live, number_of, payload
from .engines import HandEngine, staged, wait_for_on_device, wait_until_wanted
from .waiting import WAIT_S, Watch

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# --- the same key again ---


def test_replaced_on_the_host_it_keeps_its_place() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        for number, key in enumerate("abc"):
            wrapped.stage_batch(payload(number), key=key)
        wait_for_on_device(wrapped.queue, 1)
        assert wrapped.stage_batch(payload(9), key="b") == Queued("b", on_device=False, replaced=True)
        assert wrapped.queue.keys == ("a", "b", "c")
        for _ in range(3):
            wrapped.fwd_bwd()
        assert engine.trained == [0, 9, 2]
        assert wrapped.queue.statistics.drops == {"replaced": 1}


def test_replaced_on_the_device_its_arrays_are_freed() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        watch.settle()
        assert live() == [1]
        transfer.hold(3)
        assert wrapped.stage_batch(payload(3), key="a").replaced  # type: ignore[union-attr]
        transfer.wait_until_begun()
        assert live() == [3], "the old arrays went before the new ones came"
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.in_step) == (2, 0, 0)
        transfer.let_go()
        watch.settle()
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.staged, counts.promotions) == (1, 1, 3, 2)
        assert wrapped.queue.keys == ("a", "b")
        wrapped.fwd_bwd()
        wrapped.fwd_bwd()
        assert engine.trained == [3, 2]


def test_replaced_in_mid_transfer_its_arrays_are_freed() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        transfer.wait_until_begun()
        assert wrapped.stage_batch(payload(3), key="a").replaced  # type: ignore[union-attr]
        assert live() == [1]
        assert wrapped.queue.keys == ("a", "b")
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.drops) == (2, 0, {"replaced": 1})
        transfer.let_go()
        watch.settle()
        assert live() == [3]
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.staged) == (1, 1, 3)
        wrapped.fwd_bwd()
        wrapped.fwd_bwd()
        assert engine.trained == [3, 2]


def test_staged_again_while_a_step_uses_it_the_key_is_queued_anew() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        answers: list[Any] = []
        engine.inside = lambda _: answers.append(wrapped.stage_batch(payload(2), key="a"))
        wrapped.stage_batch(payload(1), key="a")
        wrapped.fwd_bwd(stage_key="a")
        engine.inside = None
        assert answers == [Queued("a", on_device=False, replaced=False)]
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1, 2]
        assert not wrapped.queue.statistics.drops


# --- reset ---


def test_a_reset_empties_the_queue_frees_the_device_and_starts_the_counts_anew() -> None:
    engine = HandEngine()
    with staged(engine, cap=2) as wrapped:
        watch = Watch(wrapped.queue)
        wrapped.stage_batch(payload(9), key="z")
        wrapped.fwd_bwd(stage_key="z")
        wrapped.fwd_bwd(payload(8))
        for number in range(4):
            wrapped.stage_batch(payload(number), key=str(number))
        watch.settle()
        assert live() == [0, 1]
        wrapped.reset_staged()
        assert live() == []
        assert wrapped.queue.keys == ()
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.in_step, counts.inline_steps) == (0, 0, 0, 0)
        assert (counts.staged, counts.taken, counts.promotions, counts.inline, counts.drops) == (0, 0, 0, {}, {})
        with pytest.raises(NotStagedError):
            wrapped.fwd_bwd(stage_key="0")
        # The same key may come again, and all the room is there again.
        for number in range(4):
            wrapped.stage_batch(payload(number + 10), key=str(number))
        watch.settle()
        assert live() == [10, 11]
        wrapped.fwd_bwd()
        assert engine.trained == [9, 8, 10]


def test_a_transfer_that_was_under_way_does_not_come_back_after_a_reset() -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        wrapped.reset_staged()
        assert wrapped.queue.keys == ()
        transfer.let_go()
        watch.settle()
        assert live() == []
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device) == (0, 0)
        wrapped.stage_batch(payload(2), key="a")
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [2]


def test_a_step_keeps_its_micro_batch_through_a_reset() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:

        def reset(batch: Any) -> None:
            wrapped.reset_staged()
            assert number_of(batch) == 1
            assert wrapped.queue.statistics.in_step == 1

        engine.inside = reset
        wrapped.stage_batch(payload(1), key="a")
        wrapped.stage_batch(payload(2), key="b")
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]
        counts = wrapped.queue.statistics
        assert (counts.queued, counts.on_device, counts.in_step) == (0, 0, 0)


def test_a_wait_for_an_entry_that_a_reset_drops_ends(others: ThreadPoolExecutor) -> None:
    transfer = HeldTransfer()
    with staged(HandEngine(), transfer=transfer) as wrapped:
        transfer.hold(1)
        wrapped.stage_batch(payload(1), key="a")
        transfer.wait_until_begun()
        step: Future[Any] = others.submit(wrapped.fwd_bwd, stage_key="a")
        wait_until_wanted(wrapped, "a")
        wrapped.reset_staged()
        with pytest.raises(NotStagedError, match="'a'"):
            step.result(WAIT_S)
        transfer.let_go()
