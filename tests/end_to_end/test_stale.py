"""What is stale, with real processes: it is never trained, and whoever staged it, or waits for it, hears why."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import MicroBatch, NotBegunError, OrchestratorSettings, Refusal, StageAhead, StaleError, TrainerHandle
from forebay.wire import RefusalCode

from .ahead_run import Worker, go, payload
from .fed_engine import Attached
from .fed_orchestrator import batch, slots, stage, status, wait, with_client
from .processes import EVENT_S, StartDaemon, all_free, kill, see

SOON_S = 3.0
"""Long enough to be staged in, short enough to be waited for."""


def stage_as(daemon: forebay.LocalDaemon, key: str, **freshness: Any) -> forebay.Staged | Refusal:
    return with_client(daemon, lambda client: client.stage(batch(key), key=key, wait_s=EVENT_S, **freshness))


def advance(daemon: forebay.LocalDaemon, version: int) -> int:
    return with_client(daemon, lambda client: client.advance(version))


def reason_for(daemon: forebay.LocalDaemon, key: str) -> str:
    """Waits until a key is dropped because it is stale; returns why it is."""
    with pytest.raises(StaleError) as caught:
        wait(daemon, key)
    assert (caught.value.key, caught.value.state) == (key, "dropped")
    return caught.value.reason


@pytest.fixture
def start_worker(shm_dir: Path) -> Iterator[Any]:
    workers: list[Worker] = []

    def start_one(daemon: forebay.LocalDaemon) -> Worker:
        workers.append(Worker(daemon, shm_dir / "worker"))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.close()


def test_one_that_expires_behind_a_slow_trainer_is_dropped_and_the_next_has_its_slot(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(slots=1)
    with Attached(daemon) as engine:
        stage(daemon, "k0")
        assert wait(daemon, "k0", "on_device") == "on_device"
        assert isinstance(stage_as(daemon, "k1", expires_s=SOON_S), forebay.Staged)
        stage(daemon, "k2")  # which waits for the slot
        assert "its time was over" in reason_for(daemon, "k1")
        engine.train(2)
        assert engine.trained == ["k0", "k2"]
        with pytest.raises(StaleError):
            engine.fwd_bwd(stage_key="k1", stage_timeout_s=EVENT_S)
    assert status(daemon).counters["dropped_stale_expired"] == 1


@pytest.mark.parametrize("why", ["expiry", "version"])
def test_one_that_is_lent_and_not_on_the_device_never_comes_there(start_daemon: StartDaemon, why: str) -> None:
    daemon = start_daemon(max_versions_behind=1)
    with Attached(daemon, cap=2) as engine:
        engine.transfer.hold("k0")
        stage(daemon, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        freshness: dict[str, Any] = {"expires_s": SOON_S} if why == "expiry" else {"policy_version": 3}
        assert isinstance(stage_as(daemon, "k1", **freshness), forebay.Staged)
        see(daemon, lambda found: sum(slot.state == "LENT" for slot in found.slots) == 2)
        if why == "version":
            assert advance(daemon, 5) == 5
        reason = reason_for(daemon, "k1")
        assert ("its time was over" if why == "expiry" else "policy version 3 is 2 behind 5") in reason
        assert slots(daemon) == {"k0": "LENT"}, "its transfer has begun"
        engine.transfer.let_go()
        stage(daemon, "k2")
        engine.train(2)
        assert engine.trained == ["k0", "k2"]
        assert "k1" not in engine.transfer.issued
        assert engine.queue.statistics.drops == {"stale": 1}
    see(daemon, all_free)


def test_what_was_on_the_device_is_trained_however_old(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(max_versions_behind=0)
    with Attached(daemon) as engine:
        assert isinstance(stage_as(daemon, "k0", policy_version=1, expires_s=SOON_S), forebay.Staged)
        assert wait(daemon, "k0", "on_device") == "on_device"
        assert isinstance(stage_as(daemon, "k1", expires_s=SOON_S), forebay.Staged)
        advance(daemon, 100)
        reason_for(daemon, "k1")  # and k0 was staged before it
        engine.train(1)
        assert engine.trained == ["k0"]
    assert wait(daemon, "k0") == "consumed"


def test_one_that_is_too_far_behind_is_refused_and_a_newer_version_drops_what_is_queued(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(max_versions_behind=1)
    assert isinstance(stage_as(daemon, "k0", policy_version=4), forebay.Staged)
    assert isinstance(stage_as(daemon, "k1", policy_version=6), forebay.Staged)
    assert "policy version 4 is 2 behind 6" in reason_for(daemon, "k0")
    refusal = stage_as(daemon, "k2", policy_version=4)
    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.STALE
    with pytest.raises(forebay.UsageError, match="a policy version"):
        stage_as(daemon, "k3", policy_version=-1)
    assert slots(daemon) == {"k1": "READY"}
    with Attached(daemon) as engine:
        engine.train(1)
        assert engine.trained == ["k1"]


def test_a_daemon_that_follows_a_killed_one_knows_what_is_stale(start_daemon: StartDaemon) -> None:
    first = start_daemon(max_versions_behind=1)
    assert isinstance(stage_as(first, "k0", policy_version=6), forebay.Staged)
    assert isinstance(stage_as(first, "k1", policy_version=6, expires_s=SOON_S), forebay.Staged)
    kill(first)
    second = start_daemon(max_versions_behind=1)
    assert "its time was over" in reason_for(second, "k1")
    refusal = stage_as(second, "k2", policy_version=4)
    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.STALE
    with Attached(second) as engine:
        engine.train(1)
        assert engine.trained == ["k0"]


def test_a_trainer_whose_daemon_is_dead_looks_at_its_own_clock_and_tells_the_next_one(
    start_daemon: StartDaemon,
) -> None:
    first = start_daemon()
    with Attached(first, cap=2) as engine:
        engine.transfer.hold("k0")
        stage(first, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        assert isinstance(stage_as(first, "k1", expires_s=SOON_S), forebay.Staged)
        see(first, lambda found: sum(slot.state == "LENT" for slot in found.slots) == 2)
        kill(first)
        entry = engine.queue._parts.books.find("k1")
        assert entry is not None
        entry.expires_at = 0.0  # its time passes
        engine.transfer.let_go()
        with pytest.raises(StaleError, match="before it could be promoted"):
            engine.fwd_bwd(stage_key="k1", stage_timeout_s=EVENT_S)
        second = start_daemon()
        see(second, lambda found: any(q.trainer and q.trainer.pid == os.getpid() for q in found.queues))
        assert "before it could be promoted" in reason_for(second, "k1")
        engine.train(1)
        assert engine.trained == ["k0"]
    see(second, all_free)


# --- the loop ---


def test_the_loop_skips_what_is_refused_as_stale_and_what_is_dropped_after_it_was_staged(
    start_daemon: StartDaemon, start_worker: Any
) -> None:
    daemon = start_daemon(max_versions_behind=1)
    worker = start_worker(daemon)

    async def source() -> AsyncIterator[MicroBatch]:
        for name, version, ends_step in (("a", 5, False), ("old", 1, True), ("b", 5, False), ("c", 5, True)):
            yield MicroBatch(payload(name), key=name, ends_step=ends_step, policy_version=version)

    async def work(trainer: TrainerHandle) -> None:
        async with forebay.StagingClient(daemon.control_endpoint) as client:
            async with StageAhead(trainer, source(), OrchestratorSettings(max_staged_batches=2)) as ahead:
                first = await anext(ahead)
                assert [trained.key async for trained in first] == ["a"]
                assert [key for key, _ in first.stale] == ["old"]
                assert first.metrics()["stage/stale"] == 1
                await see_staged(client, "b", "c")
                # b is on the device, c is not.
                await trainer.advance(7)
                second = await anext(ahead)
                assert [trained.key async for trained in second] == ["b"]
                [(key, reason)] = second.stale
                assert (key, second.fallbacks) == ("c", ())
                assert "policy version 5 is 2 behind 7" in reason
            assert (await client.status()).counters["dropped_stale_version"] == 1

    async def see_staged(client: forebay.StagingClient, ahead: str, behind: str) -> None:
        while ahead not in (await client.status()).queues[0].on_device:
            pass
        while behind not in (await client.status()).queues[0].ready:
            pass

    go(work, worker, daemon)
    see(daemon, all_free)
    worker.finish()


def test_a_step_that_asks_for_a_stale_key_is_told_so_before_anything_began(
    start_daemon: StartDaemon, start_worker: Any
) -> None:
    daemon = start_daemon(max_versions_behind=1)
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        assert await trainer.stage(payload("a"), key="a", policy_version=1) == "a"
        await trainer.advance(5)
        with pytest.raises(NotBegunError, match="stale: policy version 1 is 4 behind 5") as caught:
            await trainer.train_step(stage_key="a")
        assert caught.value.kind == "StaleError"

    go(work, worker, daemon)
    worker.finish()
