"""The stage-ahead loop with real processes: every micro-batch trained once, in order, whatever fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import (
    BrokenError,
    OrchestratorSettings,
    Refusal,
    StagingClient,
    SteadyPace,
    TrainerHandle,
    WaitTimeoutError,
    local_daemon,
)
from forebay.orchestrator_client.data_endpoint import Target
from forebay.wire import ForebayError, RefusalCode

from .ahead_run import Worker, digest, expected, go, handle, names, payload, run, source, trained_by
from .processes import StartDaemon, all_free, kill, see, slot_in

StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker(shm_dir: Path) -> Iterator[StartWorker]:
    """Starts workers that have one address; all are gone when the test is over."""
    workers: list[Worker] = []

    def start_one(daemon: forebay.LocalDaemon, mode: str = "stage") -> Worker:
        workers.append(Worker(daemon, shm_dir / "worker", mode))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("mode", ["off", "stage", "serialize"])
def test_every_micro_batch_is_trained_once_in_order_in_each_mode(
    start_daemon: StartDaemon, start_worker: StartWorker, mode: str
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon, mode)

    async def work(trainer: TrainerHandle) -> None:
        results = await run(trainer, source(3, 4))
        assert [key for key, _ in results] == names(3, 4)
        assert {way for _, way in results} == {"inline" if mode == "off" else "staged"}
        assert await trained_by(trainer) == expected(3, 4)

    go(work, worker, daemon)
    see(daemon, all_free)
    worker.finish()


@pytest.mark.parametrize("slots", [1, 2])
def test_any_depth_and_any_pool_train_the_same(
    start_daemon: StartDaemon, start_worker: StartWorker, slots: int
) -> None:
    daemon = start_daemon(slots=slots)
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        for depth in (0, 1, 4):
            batches = source(2, 3, f"{depth} deep ")
            await run(trainer, batches, settings=OrchestratorSettings(max_staged_batches=depth))
            assert (await trained_by(trainer))[-6:] == expected(2, 3, f"{depth} deep ")

    go(work, worker, daemon)
    see(daemon, all_free)


def test_a_daemon_killed_between_grant_and_publish_and_followed_loses_nothing(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    first = start_daemon()
    worker = start_worker(first)

    async def work(trainer: TrainerHandle) -> None:
        running = asyncio.create_task(run(trainer, source(2, 3)))
        await asyncio.to_thread(see, first, slot_in("FILLING", received=1))
        await asyncio.to_thread(kill, first)
        await asyncio.to_thread(start_daemon)
        await running
        assert await trained_by(trainer) == expected(2, 3)

    # Slow enough that the kill comes while a slot fills.
    go(work, worker, first, pace=SteadyPace(20e6))


def test_a_daemon_that_is_gone_for_good_costs_the_staging_and_no_micro_batch(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        async def before(name: str) -> None:
            if name == "1/0":
                await asyncio.to_thread(kill, daemon)

        results = await run(trainer, source(2, 3, before=before))
        assert results[-1] == ("1/2", "inline")
        assert await trained_by(trainer) == expected(2, 3)

    go(work, worker, daemon, silence_s=4.0, lend_timeout_s=1.0)


def test_a_data_endpoint_that_cannot_be_reached_costs_the_staging_and_no_micro_batch(
    start_daemon: StartDaemon, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = Target(f"tcp://127.0.0.1:{server.getsockname()[1]}")
    monkeypatch.setattr(StagingClient, "_data_target", lambda _: target)

    async def work(trainer: TrainerHandle) -> None:
        results = await run(trainer, source(1, 2))
        assert {way for _, way in results} == {"inline"}
        assert await trained_by(trainer) == expected(1, 2)

    go(work, worker, daemon, silence_s=1.0)
    see(daemon, all_free)


def test_a_staging_that_takes_too_long_goes_inline_and_is_trained_once(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon(slots=2)
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        settings = OrchestratorSettings(stage_timeout_s=0.05)
        results = await run(trainer, source(2, 3), settings=settings)
        assert {way for _, way in results} == {"inline"}
        assert await trained_by(trainer) == expected(2, 3)

    go(work, worker, daemon, pace=SteadyPace(30e6))
    see(daemon, all_free)


class Hasty(TrainerHandle):
    """Gives every staging up as soon as it has begun; its bytes land all the same."""

    landings: list[asyncio.Task[str | Refusal]]

    async def stage(self, payload: Any, *, key: str = "", **_: Any) -> str | Refusal:
        self.landings.append(asyncio.create_task(super().stage(payload, key=key)))
        raise WaitTimeoutError(f"{key} was given up")


@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_stagings_that_land_though_they_were_given_up_are_trained_once(
    start_daemon: StartDaemon, start_worker: StartWorker, mode: str
) -> None:
    daemon = start_daemon(slots=2)
    worker = start_worker(daemon, mode)

    async def work(trainer: TrainerHandle) -> None:
        async with Hasty(worker.endpoint, control_endpoint=daemon.control_endpoint) as hasty:
            hasty.landings = []
            results = await run(hasty, source(3, 4))
            assert [key for key, _ in results] == names(3, 4)
            landed = await asyncio.gather(*hasty.landings)
            assert len(landed) == 12
            refusals = [outcome for outcome in landed if isinstance(outcome, Refusal)]
            assert {refusal.code for refusal in refusals} <= {RefusalCode.CONSUMED}
            assert await trained_by(trainer) == expected(3, 4)

    go(work, worker, daemon)
    see(daemon, lambda status: all_free(status) and not any(queue.on_device for queue in status.queues))


def test_what_was_staged_and_dropped_behind_the_loop_goes_inline(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        async with forebay.StagingClient(daemon.control_endpoint) as other:

            async def before(name: str) -> None:
                if name == "0/2":  # the two before it are staged, and the first one's step has not begun
                    await other.reset()

            results = await run(trainer, source(1, 4, before=before))
            assert [key for key, _ in results] == names(1, 4)
            assert await trained_by(trainer) == expected(1, 4)

    go(work, worker, daemon)
    see(daemon, all_free)


def test_a_killed_worker_ends_the_loop_and_leaves_no_slot_taken(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        async def before(name: str) -> None:
            if name == "1/1":
                await asyncio.to_thread(worker.kill)

        with pytest.raises(BrokenError, match="no word from the trainer worker"):
            await run(trainer, source(3, 3, before=before))

    go(work, worker, daemon, silence_s=2.0, timeout_s=5.0)
    see(daemon, all_free)
    follower = start_worker(daemon)

    async def again(trainer: TrainerHandle) -> None:
        await run(trainer, source(1, 3, "again"))
        assert await trained_by(trainer) == expected(1, 3, "again")

    go(again, follower, daemon)


def test_a_restarted_worker_is_an_error_and_never_trains_half_a_step(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        async def before(name: str) -> None:
            if name == "0/2":
                await asyncio.to_thread(worker.kill)
                await asyncio.to_thread(start_worker, daemon)

        with pytest.raises(BrokenError, match="was restarted"):
            await run(trainer, source(2, 5, before=before))
        assert await trained_by(trainer) == []

    go(work, worker, daemon)
    see(daemon, all_free)


def test_a_cancelled_loop_leaves_no_slot_taken_and_trains_nothing_twice(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)

    async def cancel_at(moment: str, trainer: TrainerHandle) -> None:
        reached = asyncio.Event()

        async def before(name: str) -> None:
            if name.endswith(moment):
                reached.set()

        told_before = len(await trained_by(trainer))
        running = asyncio.create_task(run(trainer, source(3, 4, f"until {moment} ", before=before)))
        await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(see, daemon, all_free)
        told = (await trained_by(trainer))[told_before:]
        assert told == expected(3, 4, f"until {moment} ")[: len(told)]

    async def work(trainer: TrainerHandle) -> None:
        for moment in ("0/0", "0/1", "0/3", "1/0", "1/3", "2/2"):
            await cancel_at(moment, trainer)
        await run(trainer, source(1, 3, "next"))
        assert (await trained_by(trainer))[-3:] == expected(1, 3, "next")

    go(work, worker, daemon)
    see(daemon, all_free)


def test_an_error_of_the_source_comes_after_what_was_pulled_is_trained(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        async def before(name: str) -> None:
            if name == "0/2":
                raise ZeroDivisionError("the rollouts ended")

        with pytest.raises(ZeroDivisionError, match="the rollouts ended"):
            await run(trainer, source(1, 4, before=before))
        assert await trained_by(trainer) == expected(1, 4)[:2]

    go(work, worker, daemon)
    see(daemon, all_free)


def test_the_same_key_again_with_an_answer_lost_in_between_is_trained_once(
    start_daemon: StartDaemon, start_worker: StartWorker
) -> None:
    daemon = start_daemon()
    worker = start_worker(daemon)

    async def work(trainer: TrainerHandle) -> None:
        async with handle(worker, daemon) as other:
            await trainer.stage(payload("a"), key="a")
            await trainer.train_step(stage_key="a")
            for again in (trainer, other):
                with pytest.raises(ForebayError, match="trained by this worker already"):
                    await again.train_step(payload("a"), "a")
            assert await trained_by(trainer) == [("a", digest("a"))]

    go(work, worker, daemon)


def test_no_daemon_is_an_error_before_anything_is_trained(start_worker: StartWorker, shm_dir: Path) -> None:
    with local_daemon() as daemon:
        worker = start_worker(daemon)

        async def enter() -> None:
            async with TrainerHandle(worker.endpoint, control_endpoint=f"ipc://{shm_dir}/nobody", timeout_s=0.5):
                pytest.fail("it is open")

        with pytest.raises(WaitTimeoutError, match=r"no daemon answered at control_endpoint"):
            asyncio.run(enter())
        worker.finish()
