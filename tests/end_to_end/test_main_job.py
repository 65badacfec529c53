"""The one path that everything stands on, with three processes."""

from __future__ import annotations

import asyncio

import pytest

import forebay
from forebay.wire import RefusedError

from .party import digest, micro_batch
from .processes import StartDaemon, StartParty


def test_every_micro_batch_arrives_once_in_order_and_whole(start: StartParty, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    trainer = start("trainer", daemon.trainer_endpoint, count=9)
    orchestrator = start("orchestrator", daemon.control_endpoint, count=9, until="consumed")
    for index in range(9):
        took = trainer.until("took")
        assert took["key"] == f"k{index}"
        assert took["digest"] == digest(micro_batch(took["key"], 3_000_000))
        orchestrator.until("staged", key=took["key"], digest=took["digest"])
    trainer.finish()
    for index in range(9):
        orchestrator.until("reached", key=f"k{index}", state="consumed")
    orchestrator.finish()


def test_a_trainer_that_comes_late_misses_nothing(start: StartParty, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=10)
    orchestrator = start("orchestrator", daemon.control_endpoint, count=10)
    orchestrator.finish()
    trainer = start("trainer", daemon.trainer_endpoint, count=10)
    assert [trainer.until("took")["key"] for _ in range(10)] == [f"k{index}" for index in range(10)]
    trainer.finish()


def test_a_pool_that_is_full_makes_the_sender_wait_until_the_trainer_has_room(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=1)
    orchestrator = start("orchestrator", daemon.control_endpoint, count=4)
    orchestrator.until("staged", key="k0")
    trainer = start("trainer", daemon.trainer_endpoint, count=4)
    orchestrator.finish()
    trainer.finish()


def test_a_micro_batch_larger_than_its_slot_makes_the_slot_grow(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(slots=2)
    trainer = start("trainer", daemon.trainer_endpoint, count=3)
    start("orchestrator", daemon.control_endpoint, count=1, nbytes=1000, prefix="small").finish()
    start("orchestrator", daemon.control_endpoint, count=1, nbytes=40_000_000, prefix="large").finish()
    start("orchestrator", daemon.control_endpoint, count=1, nbytes=1000, prefix="last").finish()
    for key, nbytes in (("small0", 1000), ("large0", 40_000_000), ("last0", 1000)):
        assert trainer.until("took", key=key)["digest"] == digest(micro_batch(key, nbytes))
    trainer.finish()


def test_two_queues_do_not_mix(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    async def stage() -> None:
        async with forebay.StagingClient(daemon.control_endpoint) as client:
            for queue in ("train", "critic"):
                await client.stage(micro_batch(queue, 1000), key="same", queue=queue)

    asyncio.run(stage())
    for queue in ("critic", "train"):
        with forebay.attach(queue, endpoint=daemon.trainer_endpoint) as attached, attached.take() as batch:
            assert batch.tree["meta"]["name"] == queue


def test_a_second_trainer_is_refused_and_told_who_has_the_queue(
    start: StartParty, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon()
    trainer = start("trainer", daemon.trainer_endpoint)
    trainer.until("attached")
    with pytest.raises(RefusedError, match=rf"pid {trainer.process.pid} on") as refusal:
        forebay.attach(endpoint=daemon.trainer_endpoint, timeout_s=1)
    assert refusal.value.code == "queue_taken"
    start("orchestrator", daemon.control_endpoint)
    trainer.finish()
