"""A worker whose queue a daemon feeds: what was staged is trained once, and what is not there has not begun."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forebay import NotBegunError, Refusal, RemoteCallError, TrainerHandle
from forebay.wire import RefusalCode

from ..trainer.gate import Gate
from .processes import StartDaemon, all_free, see
from .served import Engine, Served, payload, talk_to


@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_what_was_staged_with_the_daemon_is_trained(shm_dir: Path, start_daemon: StartDaemon, mode: str) -> None:
    async def run(handle: TrainerHandle) -> None:
        assert handle.stages
        for number in range(3):
            key = await handle.stage(payload(number))
            assert isinstance(key, str)
            trained = await handle.train_step(stage_key=key)
            assert (trained.key, trained.source, trained.value["number"]) == (key, "staged", number)

    daemon = start_daemon()
    with Served(shm_dir, mode=mode, daemon=daemon) as served:
        talk_to(daemon, served, run)
        see(daemon, all_free)


def test_the_next_micro_batch_is_staged_while_a_step_blocks(shm_dir: Path, start_daemon: StartDaemon) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        await handle.stage(payload(1), key="k1")
        step = asyncio.create_task(handle.train_step(stage_key="k1"))
        await gate.reached()
        assert await handle.stage(payload(2), key="k2") == "k2"
        assert (await handle.stage_batch(payload(3), key="k3"))["staged"]
        assert not step.done()
        gate.open()
        await step
        assert (await handle.train_step(stage_key="k2")).source == "staged"
        assert (await handle.train_step(stage_key="k3")).source == "staged"

    daemon = start_daemon()
    with Served(shm_dir, Engine(inside=lambda _: gate()), daemon=daemon) as served:
        talk_to(daemon, served, run)
        assert served.engine.trained == [1, 2, 3]


def test_a_step_whose_micro_batch_does_not_come_in_time_has_not_begun(
    shm_dir: Path, start_daemon: StartDaemon
) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(NotBegunError, match="'k' to be on the device") as caught:
            await handle.train_step(stage_key="k", stage_timeout_s=0.2)
        assert (caught.value.kind, caught.value.state) == ("WaitTimeoutError", "ready")
        assert (await handle.train_step(payload(1), "k")).source == "inline"

    daemon = start_daemon()
    with Served(shm_dir, daemon=daemon) as served:
        talk_to(daemon, served, run)


def test_a_step_whose_micro_batch_was_dropped_has_not_begun(shm_dir: Path, start_daemon: StartDaemon) -> None:
    gate = Gate("the first step")

    async def run(handle: TrainerHandle) -> None:
        step = asyncio.create_task(handle.train_step(payload(1)))
        await gate.reached()
        await handle.stage(payload(2), key="k")
        await handle.reset_staged()
        gate.open()
        await step
        with pytest.raises(NotBegunError) as caught:
            await handle.train_step(stage_key="k", stage_timeout_s=0.5)
        assert caught.value.kind in ("MicroBatchGoneError", "WaitTimeoutError")
        assert (await handle.train_step(payload(2), "k")).value["number"] == 2

    daemon = start_daemon()
    with Served(shm_dir, Engine(inside=lambda _: gate()), daemon=daemon) as served:
        talk_to(daemon, served, run)
        see(daemon, all_free)


def test_a_key_that_was_trained_by_its_payload_is_not_staged_again(
    shm_dir: Path, start_daemon: StartDaemon
) -> None:
    async def run(handle: TrainerHandle) -> None:
        await handle.train_step(payload(1), "k")
        # The daemon hears of the end of the step a moment after the step's caller.
        await asyncio.to_thread(see, daemon, lambda status: status.counters.get("finished_consumed", 0) == 1)
        outcome = await handle.stage(payload(2), key="k")
        assert isinstance(outcome, Refusal)
        assert outcome.code is RefusalCode.CONSUMED
        with pytest.raises(RemoteCallError, match="AlreadyTrainedError"):
            await handle.train_step(stage_key="k")

    daemon = start_daemon()
    with Served(shm_dir, daemon=daemon) as served:
        talk_to(daemon, served, run)
        assert served.engine.trained == [1]


def test_a_step_without_a_key_trains_the_next_one_and_that_once(shm_dir: Path, start_daemon: StartDaemon) -> None:
    async def run(handle: TrainerHandle) -> None:
        for number in (1, 2):
            await handle.stage(payload(number), key=f"k{number}")
        for number in (1, 2):
            trained = await handle.train_step()
            assert (trained.key, trained.value["number"]) == (f"k{number}", number)
        for key in ("k1", "k2"):
            with pytest.raises(RemoteCallError, match="AlreadyTrainedError"):
                await handle.train_step(payload(9), key)
            assert not (await handle.stage_batch(payload(9), key=key))["staged"]

    daemon = start_daemon()
    with Served(shm_dir, daemon=daemon) as served:
        talk_to(daemon, served, run)
        assert served.engine.trained == [1, 2]


def test_a_worker_in_off_stages_nothing_though_a_daemon_feeds_it(shm_dir: Path, start_daemon: StartDaemon) -> None:
    async def run(handle: TrainerHandle) -> None:
        assert not handle.stages
        assert isinstance(await handle.stage(payload(1), key="k"), Refusal)
        assert (await handle.train_step(payload(1), "k")).source == "inline"

    daemon = start_daemon()
    with Served(shm_dir, mode="off", daemon=daemon) as served:
        talk_to(daemon, served, run)
