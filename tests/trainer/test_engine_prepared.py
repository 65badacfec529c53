"""What is prepared reaches the engine as it is, and only its own key's entry is dropped."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import Declined, Prepared
from forebay.wire import UsageError

from .device_arrays import HeldTransfer, live, payload
from .engines import HandEngine, staged, wait_for_on_device
from .waiting import Watch

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize("leaf", [np.zeros(2, np.float32), np.float32(1), np.array(1)])
def test_a_prepared_payload_with_a_numpy_array_is_refused_by_name(leaf: Any) -> None:
    with pytest.raises(UsageError, match=r"leaf \['a'\]\[1\] of a prepared payload is not on the device"):
        Prepared({"a": [jax.device_put(np.zeros(2, np.float32)), leaf], "b": "static"})


def test_a_prepared_payload_reaches_the_engine_as_it_is_and_touches_nothing_that_is_staged() -> None:
    got: list[Any] = []
    transfer = HeldTransfer()
    with staged(HandEngine(inside=got.append), transfer=transfer) as wrapped:
        for number, key in enumerate("ab"):
            wrapped.stage_batch(payload(number), key=key)
        wait_for_on_device(wrapped.queue, 1)
        tree = {"x": jax.device_put(payload(5)["x"]), "policy": 7}
        wrapped.fwd_bwd(Prepared(tree))
        assert got.pop() is tree
        counts = wrapped.queue.statistics
        assert (counts.prepared, counts.inline, counts.drops, counts.taken) == (1, {}, {}, 0)
        assert (counts.queued, counts.on_device, counts.inline_steps) == (1, 1, 0)
        assert wrapped.queue.keys == ("a", "b")
        assert transfer.issued == [0]
        del tree


def test_a_prepared_payload_is_not_staged() -> None:
    with staged(HandEngine()) as wrapped:
        prepared = Prepared({"x": jax.device_put(payload(5)["x"])})
        answer = wrapped.stage_batch(prepared, key="a")
        assert isinstance(answer, Declined)
        assert "on the device already" in answer.reason
        assert wrapped.queue.statistics.staged == 0
        del prepared


@pytest.mark.parametrize("is_on_device", [True, False])
def test_a_prepared_payload_drops_the_entry_whose_key_it_stands_for(is_on_device: bool) -> None:
    engine, transfer = HandEngine(), HeldTransfer()
    with staged(engine, transfer=transfer) as wrapped:
        watch = Watch(wrapped.queue)
        for number, key in enumerate("ab" if is_on_device else "ba"):
            wrapped.stage_batch(payload(number), key=key)
        watch.settle()
        wrapped.fwd_bwd(Prepared({"x": jax.device_put(payload(5)["x"])}), stage_key="a")
        watch.settle()
        assert engine.trained == [5]
        counts = wrapped.queue.statistics
        assert (counts.prepared, counts.drops, counts.taken) == (1, {"prepared": 1}, 0)
        assert (counts.queued, counts.on_device) == (0, 1)
        assert wrapped.queue.keys == ("b",)
        assert live() == ([1] if is_on_device else [0])
        wrapped.fwd_bwd(Prepared({"x": jax.device_put(payload(6)["x"])}), stage_key="no such key")
        assert wrapped.queue.keys == ("b",)
