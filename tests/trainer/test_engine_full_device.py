"""What the device has no room for keeps its place and no memory, and succeeds later."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import PromotionError
from forebay.wire import TreeError

from .device_arrays import FullDevice, HeldTransfer, large, live, payload
from .engines import HandEngine, staged, wait_for_on_device
from .waiting import WAIT_S, Watch

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize("has_payload", [False, True])
def test_a_promotion_that_the_device_has_no_room_for_fails_keeps_its_place_and_succeeds_later(
    has_payload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, engine = FullDevice(monkeypatch), HandEngine()
    with staged(engine) as wrapped:
        watch = Watch(wrapped.queue)
        wrapped.stage_batch(large(1), key="a")
        assert device.refused.acquire(timeout=WAIT_S)
        wrapped.stage_batch(large(2), key="b")
        for _ in range(2):
            with pytest.raises(PromotionError, match=r"'a' could not be promoted: .*RESOURCE_EXHAUSTED") as caught:
                wrapped.fwd_bwd(large(1) if has_payload else None, stage_key="a")
            assert engine.options == []
            assert wrapped.queue.keys == ("a", "b")
            # While the step failed, "b" may have been tried, and be on the device in part.
            watch.settle()
            assert live() == [], "a part of it was kept"
            assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
        assert wrapped.queue.statistics.failures >= 2
        assert not wrapped.queue.statistics.drops
        device.is_full = False
        wrapped.fwd_bwd(large(1) if has_payload else None, stage_key="a")
        wrapped.fwd_bwd()
        assert engine.trained == [1, 2]


def test_a_promotion_that_fails_at_its_end_keeps_no_part_either(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = HeldTransfer()
    engine = HandEngine()
    errors = [RuntimeError("RESOURCE_EXHAUSTED: while it was waited for")] * 2
    with staged(engine, transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)
        complete = transfer.complete

        def fail(placed: Any, issued: list[jax.Array]) -> Any:
            if errors:
                raise errors.pop()
            return complete(placed, issued)

        monkeypatch.setattr(transfer, "complete", fail)
        wrapped.stage_batch(payload(1), key="a")
        watch.settle()
        assert live() == []
        with pytest.raises(PromotionError, match="RESOURCE_EXHAUSTED"):
            wrapped.fwd_bwd(stage_key="a")
        assert live() == []
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]


def test_serialize_tells_of_a_failed_promotion_and_keeps_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    device, engine = FullDevice(monkeypatch), HandEngine()
    with staged(engine, "serialize") as wrapped:
        with pytest.raises(PromotionError, match=r"'a' could not be promoted: .*RESOURCE_EXHAUSTED"):
            wrapped.stage_batch(large(1), key="a")
        assert wrapped.queue.keys == ("a",)
        assert live() == []
        device.is_full = False
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]


def test_a_payload_of_a_steps_own_that_the_device_has_no_room_for_fails_and_changes_no_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, engine = FullDevice(monkeypatch), HandEngine()
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(9), key="k")
        wait_for_on_device(wrapped.queue, 1)
        with pytest.raises(PromotionError, match=r"the payload could not be transferred: .*RESOURCE_EXHAUSTED"):
            wrapped.fwd_bwd(large(1))
        assert live() == [9]
        counts = wrapped.queue.statistics
        assert (counts.inline_steps, counts.on_device) == (0, 1)
        device.is_full = False
        wrapped.fwd_bwd(large(1))
        assert engine.trained == [1]
        # The next is promoted, as after any other step.
        wrapped.fwd_bwd()
        assert engine.trained == [1, 9]


def test_a_micro_batch_that_can_never_be_had_is_refused_and_changes_nothing() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        for bad in ({"x": object()}, {"x": np.zeros(2, np.int64)}):
            with pytest.raises(TreeError, match=r"\['x'\]"):
                wrapped.stage_batch(bad, key="a")
            with pytest.raises(TreeError, match=r"\['x'\]"):
                wrapped.fwd_bwd(bad)
        assert wrapped.queue.keys == ("a",)
        assert (wrapped.queue.statistics.staged, wrapped.queue.statistics.drops) == (1, {})
        wrapped.fwd_bwd(stage_key="a")
        assert engine.trained == [1]
