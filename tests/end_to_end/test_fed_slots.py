"""A slot is released when its bytes are on the device, and a few slots feed any number of micro-batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import forebay
from forebay.trainer import PromotionError
from forebay.wire import MicroBatchGoneError

from .fed_engine import FENCE, Attached
from .fed_orchestrator import keys, offer, slots, stage, wait
from .processes import EVENT_S, StartDaemon, all_free, see

# --- slots ---


def test_a_slot_is_released_when_its_transfer_is_complete_and_not_before(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=1)
    with Attached(daemon) as engine:
        engine.transfer.hold("k0")
        engine.fence()
        stage(daemon, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        engine.fence()
        assert slots(daemon) == {"k0": "LENT"}
        refusal = offer(daemon, "k1", wait_s=0)
        assert isinstance(refusal, forebay.Refusal)
        assert refusal.code == "no_slot"
        engine.transfer.let_go()
        assert wait(daemon, "k0", "on_device") == "on_device"
        assert slots(daemon) == {}
        # The very bytes that k0 came from.
        stage(daemon, "k1")
        engine.train(2)
        assert engine.trained == ["k0", "k1"]
    see(daemon, all_free)


def test_a_transfer_that_failed_keeps_its_slot_and_is_tried_again(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        engine.transfer.failing.add("k0")
        stage(daemon, "k0", "k1")
        # However often it failed ahead of this.
        with pytest.raises(PromotionError, match="RESOURCE_EXHAUSTED"):
            engine.fwd_bwd(stage_timeout_s=EVENT_S)
        engine.fence()
        assert slots(daemon)["k0"] == "LENT"
        assert engine.trained == []
        engine.transfer.failing.clear()
        engine.train(2)
        assert engine.trained == ["k0", "k1"]
        assert [wait(daemon, key) for key in keys(2)] == ["consumed", "consumed"]
    see(daemon, all_free)


def test_reset_staged_releases_the_slots_that_wait(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        stage(daemon, "k0", "k1")
        with engine.queue.take(timeout_s=EVENT_S) as in_step:
            engine.fence()
            assert slots(daemon) == {"k1": "LENT"}
            engine.reset_staged()
            engine.fence()
            assert slots(daemon) == {}
            assert in_step.key == "k0"
        assert wait(daemon, "k0") == "consumed"
        with pytest.raises(MicroBatchGoneError, match="'k1' is dropped: the trainer reset its queue"):
            wait(daemon, "k1")
        stage(daemon, "k2")
        engine.train(1)
        assert engine.trained == ["k2"]


def test_reset_staged_in_mid_transfer_releases_the_slot_when_that_is_over(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        engine.transfer.hold("k0")
        stage(daemon, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        engine.reset_staged()
        engine.fence()
        assert slots(daemon) == {"k0": "LENT"}
        engine.transfer.let_go()
        with pytest.raises(MicroBatchGoneError, match="'k0' is dropped: the trainer reset its queue"):
            wait(daemon, "k0")
        assert slots(daemon) == {}
        stage(daemon, "k1")
        engine.train(1)
        assert engine.trained == ["k1"]
        assert engine.transfer.issued == [FENCE, "k0", "k1"]


# --- more micro-batches than slots ---


@pytest.mark.parametrize("mode", ["stage", "serialize"])
@pytest.mark.parametrize("cap", [0, 1, 2])
def test_more_micro_batches_than_slots_are_all_trained_once_in_order(
    start_daemon: StartDaemon, cap: int, mode: str
) -> None:
    daemon = start_daemon(slots=2)
    count = 9
    with Attached(daemon, cap=cap, mode=mode) as engine, ThreadPoolExecutor(1) as pool:
        sender = pool.submit(stage, daemon, *keys(count))
        engine.train(count)
        sender.result(EVENT_S)
        assert engine.trained == keys(count)
        if cap:
            assert engine.inner.most_live <= cap
        assert [wait(daemon, key) for key in keys(count)] == ["consumed"] * count
    see(daemon, all_free)


def test_with_a_cap_of_two_two_are_on_the_device_and_the_next_wait_in_their_slots(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(slots=2)
    with Attached(daemon, cap=2) as engine, ThreadPoolExecutor(1) as pool:
        sender = pool.submit(stage, daemon, *keys(5))
        with engine.queue.take(timeout_s=EVENT_S):
            # One more is lent: the place of the first was free when that was taken.
            expected = {"k2": "LENT", "k3": "READY"}
            see(daemon, lambda status: {slot.key: slot.state for slot in status.slots} == expected)
            engine.fence()
            counts = engine.queue.statistics
            assert (counts.in_step, counts.on_device, counts.promotions) == (1, 1, 2)
            assert slots(daemon) == expected
        engine.train(4)
        sender.result(EVENT_S)
        assert engine.trained == keys(4, first=1)
        assert engine.inner.most_live <= 2


def test_without_a_cap_all_come_to_the_device_through_the_few_slots_there_are(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=2)
    with Attached(daemon, cap=0) as engine:
        stage(daemon, "k0")
        with engine.queue.take(timeout_s=EVENT_S):
            stage(daemon, *keys(6, first=1))
            for key in keys(6, first=1):
                assert wait(daemon, key, "on_device") == "on_device"
            assert slots(daemon) == {}
            counts = engine.queue.statistics
            assert (counts.in_step, counts.on_device, counts.queued) == (1, 6, 0)
        engine.train(6)
        assert engine.trained == keys(6, first=1)
