"""A daemon that is followed by another has each micro-batch trained, and none twice."""

from __future__ import annotations

import os

import pytest

import forebay
from forebay.wire import Status

from .fed_engine import Attached
from .fed_orchestrator import batch, keys, offer, slots, stage, wait
from .processes import EVENT_S, StartDaemon, all_free, kill, see


def is_attached(status: Status) -> bool:
    """Tells whether this process has attached to the daemon, not only left slots lent in its pool."""
    return any(queue.trainer is not None and queue.trainer.pid == os.getpid() for queue in status.queues)


@pytest.mark.parametrize("moment", ["between two steps", "in mid-transfer", "out of order"])
def test_a_daemon_killed_and_followed_by_one_that_keeps_the_pool_has_all_trained_and_nothing_twice(
    start_daemon: StartDaemon, moment: str
) -> None:
    first = start_daemon()
    with Attached(first) as engine:
        if moment == "in mid-transfer":
            engine.transfer.hold("k1")
        stage(first, *keys(4))
        engine.train(1)
        if moment == "in mid-transfer":
            assert engine.transfer.begun.wait(EVENT_S)
        else:
            assert wait(first, "k1", "on_device") == "on_device"
        kill(first)
        second = start_daemon()
        see(second, is_attached)
        # What the orchestrator repeats now must not be trained beside what the trainer has.
        refusal = offer(second, "k1")
        assert isinstance(refusal, forebay.Refusal)
        assert refusal.code == "in_use"
        engine.transfer.let_go()
        if moment == "out of order":
            engine.fwd_bwd(stage_key="k3", stage_timeout_s=EVENT_S)
            engine.train(2)
            assert engine.trained == ["k0", "k3", "k1", "k2"]
        else:
            engine.train(3)
            assert engine.trained == keys(4)
        assert [wait(second, key) for key in keys(3, first=1)] == ["consumed"] * 3
        stage(second, "k4")
        engine.train(1)
        assert engine.trained[4:] == ["k4"]
    see(second, all_free)


def test_what_was_trained_while_no_daemon_was_there_is_told_to_the_next(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    with Attached(first) as engine:
        stage(first, *keys(3))
        engine.train(1)
        assert wait(first, "k1", "on_device") == "on_device"
        engine.fence()
        kill(first)
        engine.train(1)
        engine.fwd_bwd(batch("k2", "q2"), stage_key="k2", stage_timeout_s=EVENT_S)
        second = start_daemon()
        see(second, lambda status: status.counters.get("finished_consumed") == 2)
        assert [wait(second, key) for key in keys(2, first=1)] == ["consumed"] * 2
        for key in keys(2, first=1):
            refusal = offer(second, key)
            assert isinstance(refusal, forebay.Refusal)
            assert refusal.code == "consumed"
        stage(second, "k3")
        engine.train(1)
        assert engine.trained == ["k0", "k1", "q2", "k3"]
    see(second, all_free)


def test_a_daemon_followed_by_one_with_another_pool_ends_what_was_only_lent(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    with Attached(first) as engine:
        stage(first, "k0", "k1")
        with engine.queue.take(timeout_s=EVENT_S) as in_step:
            engine.fence()
            assert slots(first) == {"k1": "LENT"}
            first.close()
            second = start_daemon()
            see(second, is_attached)
            assert in_step.key == "k0"
        assert wait(second, "k0") == "consumed"
        stage(second, "k2", "k1")
        engine.train(2)
        assert engine.trained == ["k2", "k1"]
    see(second, all_free)
