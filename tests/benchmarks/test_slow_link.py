"""A stand-in for a slower link, over real transfers, and one for a device whose updates take their own time."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
import pytest

from forebay.benchmarks.payload import largest_leaf, micro_batch
from forebay.benchmarks.slow_link import SlowLinkTransfer
from forebay.benchmarks.stand_in import TimedEngine
from forebay.trainer import StagingQueue, TrainerSettings
from forebay.trainer.transfer import OnDevice
from forebay.wire import UsageError

PAYLOAD: dict[str, Any] = {"x": np.arange(1000, dtype=np.int32), "pad_id": 0}
PAYLOAD_BYTES = 4000


class FakeClock:
    """A clock that only moves when somebody sleeps, or the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept_s: list[float] = []

    def tell(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now += seconds


def slow_link(clock: FakeClock, copy_s: float = 4.0) -> SlowLinkTransfer:
    return SlowLinkTransfer(copy_s, PAYLOAD_BYTES, clock=clock.tell, sleep=clock.sleep)


def transferred(transfer: SlowLinkTransfer, payload: Any, clock: FakeClock, real_s: float = 0.0) -> OnDevice:
    placed = transfer.place(transfer.take_apart(payload))
    issued = transfer.issue(placed)
    clock.now += real_s
    return transfer.complete(placed, issued)


def test_a_transfer_is_real_and_takes_as_long_as_was_stated() -> None:
    clock = FakeClock()
    transfer = slow_link(clock)
    on_device = transferred(transfer, PAYLOAD, clock, real_s=1.5)
    assert isinstance(on_device.tree["x"], jax.Array)
    np.testing.assert_array_equal(on_device.tree["x"], PAYLOAD["x"])
    assert clock.now == pytest.approx(104.0)
    assert clock.slept_s == [pytest.approx(2.5)]
    assert (transfer.transfers, transfer.late_transfers, transfer.late_s) == (1, 0, 0.0)


def test_fewer_bytes_take_less_time() -> None:
    clock = FakeClock()
    transferred(slow_link(clock), {"x": PAYLOAD["x"][:250]}, clock)
    assert clock.slept_s == [pytest.approx(1.0)]


def test_a_transfer_that_really_takes_longer_is_not_made_longer_and_is_counted() -> None:
    clock = FakeClock()
    transfer = slow_link(clock)
    transferred(transfer, PAYLOAD, clock, real_s=4.5)
    transferred(transfer, PAYLOAD, clock, real_s=6.0)
    transferred(transfer, PAYLOAD, clock, real_s=1.0)
    assert clock.slept_s == [pytest.approx(3.0)]
    assert (transfer.transfers, transfer.late_transfers) == (3, 2)
    assert transfer.late_s == pytest.approx(2.5)


def test_a_transfer_that_fails_does_not_count() -> None:
    clock = FakeClock()
    transfer = slow_link(clock)
    placed = transfer.place(transfer.take_apart(PAYLOAD))
    [array] = transfer.issue(placed)
    array.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        transfer.complete(placed, [array])
    assert (transfer.transfers, clock.slept_s) == (0, [])


def test_a_queue_hears_of_a_micro_batch_when_the_slower_link_is_done() -> None:
    payload = micro_batch(1)
    arrays = (leaf for leaf in jax.tree.leaves(payload) if isinstance(leaf, np.ndarray))
    copy_s = 0.05
    transfer = SlowLinkTransfer(copy_s, sum(array.nbytes for array in arrays))
    with StagingQueue(transfer, settings=TrainerSettings(stage_batch="stage")) as queue:
        began_at = time.monotonic()
        queue.stage(payload, key="a")
        with queue.take("a") as batch:
            assert time.monotonic() - began_at >= copy_s
            assert batch.promote_s >= copy_s
            np.testing.assert_array_equal(largest_leaf(batch.tree), largest_leaf(payload))
            batch.close()
    assert transfer.transfers == 1


@pytest.mark.parametrize(
    ("copy_s", "payload_bytes", "words"),
    [(-1.0, 1, "got -1.0"), (float("nan"), 1, "so long"), (float("inf"), 1, "so long"), (1.0, 0, "no bytes")],
)
def test_a_link_that_cannot_be_is_an_error(copy_s: float, payload_bytes: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SlowLinkTransfer(copy_s, payload_bytes)


def test_an_update_takes_its_own_time_behind_the_compute_before_it() -> None:
    with TimedEngine(0.001, update_s=0.003) as engine:
        compute = engine.fwd_bwd(object(), key="a")
        update = engine.update().block_until_ready()
    assert update.began_at >= compute.ready_at
    assert update.ready_at - update.began_at == pytest.approx(0.003)


def test_an_update_takes_as_long_as_a_micro_batch_if_nothing_else_is_said() -> None:
    with TimedEngine(0.002) as engine:
        update = engine.update().block_until_ready()
    assert update.ready_at - update.began_at == pytest.approx(0.002)
