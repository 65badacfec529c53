"""Slots and what is staged in process make one order, and steps by key leave the others in it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from forebay import StagingClient, SteadyPace
from forebay.wire import MicroBatchGoneError, Status

from .fed_engine import Attached
from .fed_orchestrator import batch, keys, slots, stage, status, wait, with_client
from .processes import EVENT_S, StartDaemon, all_free, see

# --- one order ---


@pytest.mark.parametrize("cap", [0, 5])
def test_entries_from_slots_and_in_process_keep_one_order(start_daemon: StartDaemon, cap: int) -> None:
    daemon = start_daemon()
    with Attached(daemon, cap=cap) as engine:
        engine.fence()
        for slot_fed, in_process in (("k0", "p0"), ("k1", "p1")):
            stage(daemon, slot_fed)
            engine.fence()
            engine.stage_batch(batch(in_process), key=in_process)
        stage(daemon, "k2")
        engine.fence()
        assert engine.queue.keys == ("k0", "p0", "k1", "p1", "k2")
        engine.train(5)
        assert engine.trained == ["k0", "p0", "k1", "p1", "k2"]
        assert [wait(daemon, key) for key in keys(3)] == ["consumed"] * 3


def test_with_a_cap_of_one_what_is_staged_in_process_goes_before_what_is_not_lent_yet(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon, first="p0") as engine:
        stage(daemon, "k0", "k1")
        engine.fence()
        assert engine.queue.keys == ("p0",)
        assert slots(daemon) == {"k0": "READY", "k1": "READY"}
        engine.train(3)
        assert engine.trained == ["p0", "k0", "k1"]


def test_a_key_that_is_staged_in_process_and_then_lent_is_trained_once_by_the_slots_bytes(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon, cap=0) as engine:
        engine.stage_batch(batch("k0", "p0"), key="k0")
        engine.stage_batch(batch("p1"), key="p1")
        engine.fence()
        stage(daemon, "k0")
        engine.fence()
        assert engine.queue.keys == ("k0", "p1")
        engine.train(2)
        assert engine.trained == ["k0", "p1"]
        assert wait(daemon, "k0") == "consumed"


def test_a_key_that_was_staged_in_process_and_trained_is_not_trained_again_from_a_slot(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon, first="k0") as engine:
        stage(daemon, "k0")
        engine.train(1)
        stage(daemon, "k1")
        engine.train(1)
        assert engine.trained == ["k0", "k1"]
        assert wait(daemon, "k0") == "consumed"


# --- steps by key ---


@pytest.mark.parametrize("cap", [1, 2])
@pytest.mark.parametrize("order", ["0123", "3102", "2301"])
def test_steps_ask_the_daemon_for_their_keys_in_and_out_of_order(
    start_daemon: StartDaemon, order: str, cap: int
) -> None:
    daemon = start_daemon()
    wanted = [f"k{index}" for index in order]
    with Attached(daemon, cap=cap) as engine:
        stage(daemon, *keys(4))
        for key in wanted:
            engine.fwd_bwd(None, stage_key=key, stage_timeout_s=EVENT_S)
        assert engine.trained == wanted
        assert engine.inner.most_live <= cap
        assert [wait(daemon, key) for key in wanted] == ["consumed"] * 4
        assert engine.queue.statistics.inline == {"missing": 1}, "the fence and nothing else"
    see(daemon, all_free)


def test_a_step_out_of_order_takes_the_room_of_the_next_and_leaves_the_others_in_order(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        stage(daemon, *keys(4))
        engine.fence()
        assert wait(daemon, "k0", "on_device") == "on_device"
        engine.stage_batch(batch("p0"), key="p0")
        engine.fwd_bwd(stage_key="k2", stage_timeout_s=EVENT_S)
        engine.train(4)
        assert engine.trained == ["k2", "k0", "p0", "k1", "k3"]
        assert engine.inner.most_live == 1
        assert engine.queue.statistics.demotions == 1
        assert [wait(daemon, key) for key in keys(4)] == ["consumed"] * 4
        # The four, the fence, and what was staged in process.
        assert status(daemon).counters.get("finished_consumed") == 6
    see(daemon, all_free)


def test_a_step_waits_for_a_key_that_is_staged_only_later(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine, ThreadPoolExecutor(1) as pool:
        stage(daemon, "k0")
        step = pool.submit(engine.fwd_bwd, None, "k1", stage_timeout_s=EVENT_S)
        # Lent for itself, since a step waits, although k0 has the only place.
        stage(daemon, "k1")
        step.result(EVENT_S)
        engine.train(1)
        assert engine.trained == ["k1", "k0"]


def is_filling(status: Status) -> bool:
    return any(slot.state == "FILLING" for slot in status.slots)


@pytest.mark.parametrize("cause", ["the queue was reset", "abandoned by its sender", "the sender fell silent"])
def test_a_step_that_waits_for_a_key_hears_that_it_is_dropped(start_daemon: StartDaemon, cause: str) -> None:
    daemon = start_daemon(fill_lease_s=3.0 if "silent" in cause else 60.0)

    async def drop(step: Future[Any]) -> None:
        pace = SteadyPace(1 << 17)  # a chunk in eight seconds
        async with StagingClient(daemon.control_endpoint, pace=pace, retry_s=EVENT_S) as slow:
            sending = asyncio.create_task(slow.stage({"x": np.zeros(64 << 20, np.uint8)}, key="k1"))
            await asyncio.to_thread(see, daemon, is_filling)
            if cause == "the queue was reset":
                await asyncio.to_thread(with_client, daemon, lambda client: client.reset(queue="train"))
            elif cause == "abandoned by its sender":
                sending.cancel()
            # Nobody tells the daemon anew what is waited for but the trainer itself, every two seconds.
            with pytest.raises(MicroBatchGoneError, match=f"'k1' is dropped: {cause}"):
                await asyncio.wrap_future(step)
            sending.cancel()

    with Attached(daemon) as engine, ThreadPoolExecutor(1) as pool:
        asyncio.run(drop(pool.submit(engine.fwd_bwd, None, "k1", stage_timeout_s=EVENT_S)))
    see(daemon, all_free)


def test_a_key_that_was_trained_is_not_waited_for(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        stage(daemon, "k0")
        engine.train(1)
        with pytest.raises(MicroBatchGoneError, match="'k0' is consumed"):
            engine.fwd_bwd(stage_key="k0", stage_timeout_s=EVENT_S)
        assert engine.trained == ["k0"]
