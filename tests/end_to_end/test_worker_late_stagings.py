"""Bytes that land in a slot while their key is trained inline, or later: trained once, and no slot stays taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from forebay import LocalDaemon, Refusal, RemoteCallError, Staged, StagingClient, TrainerHandle
from forebay.orchestrator_client.pace import Pace
from forebay.wire import ChunkFault, MicroBatchState, RefusalCode

from ..trainer.gate import Gate
from ..trainer.waiting import Call
from .processes import EVENT_S, Condition, StartDaemon, all_free, see
from .served import SHAPE, Engine, Served, boom, payload, talk_to

T = TypeVar("T")
KEY = "k"
MANY_ROWS = 20_000  # several chunks


class HeldPace(Pace):
    """A wire that carries the first chunk at once, and then nothing until its gate is opened."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.gate = Gate(name)
        self._is_first = True

    def _carry_s(self, nbytes: int) -> float:  # noqa: ARG002 - it is as fast for all
        if not self._is_first:
            self.gate()
        self._is_first = False
        return 0.0


class Stager:
    """Another orchestrator, on a thread of its own, which stages one micro-batch and sends it by halves.

    Args:
        daemon: With which.
        number: Of the micro-batch.
        key: Its key.
    """

    def __init__(self, daemon: LocalDaemon, number: int, key: str) -> None:
        self.pace = HeldPace(f"the chunks of {key}, micro-batch {number}")
        self._endpoint = daemon.control_endpoint
        self._loop: asyncio.AbstractEventLoop
        self.call = Call(lambda: asyncio.run(self._stage(number, key)))
        self.pace.gate.wait_until_reached()

    async def _stage(self, number: int, key: str) -> Staged | Refusal:
        self._loop = asyncio.get_running_loop()
        async with StagingClient(self._endpoint, pace=self.pace) as client:
            return await client.stage(payload(number, MANY_ROWS), key=key, timeout_s=EVENT_S)

    def stand_still(self) -> Gate:
        """Has it hear nothing until the gate is opened; what it sends goes on."""
        gate = Gate("an orchestrator that hears nothing")
        self._loop.call_soon_threadsafe(gate)
        gate.wait_until_reached()
        return gate


def ask(daemon: LocalDaemon, what: Callable[[StagingClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with StagingClient(daemon.control_endpoint, timeout_s=EVENT_S) as client:
            return await what(client)

    return asyncio.run(run())


def slot_of(key: str, state: str) -> Condition:
    return lambda status: (key, state) in [(slot.key, slot.state) for slot in status.slots]


def on_device(key: str) -> Condition:
    return lambda status: any(key in queue.on_device for queue in status.queues)


def check_that_it_is_over(daemon: LocalDaemon, served: Served) -> None:
    """Checks that the key is trained for daemon and worker, and nothing of it left; then trains another one."""

    async def again(handle: TrainerHandle) -> None:
        for arguments in ((None, KEY), (payload(8), KEY)):
            with pytest.raises(RemoteCallError, match="AlreadyTrainedError"):
                await handle.train_step(*arguments)
        outcome = await handle.stage(payload(8), key=KEY)
        assert isinstance(outcome, Refusal)
        assert outcome.code is RefusalCode.CONSUMED
        assert await handle.stage(payload(9), key="next") == "next"
        trained = await handle.train_step(stage_key="next")
        assert (trained.value["number"], trained.source) == (9, "staged")

    assert ask(daemon, lambda client: client.wait(KEY, timeout_s=EVENT_S)) is MicroBatchState.CONSUMED
    talk_to(daemon, served, again)
    assert served.staged.queue.keys == ()
    see(daemon, lambda status: all_free(status) and not any(queue.on_device for queue in status.queues))


@pytest.mark.parametrize(
    ("mode", "is_device_full", "where"),
    [
        ("stage", False, on_device(KEY)),
        ("stage", True, slot_of(KEY, "READY")),
        ("serialize", False, slot_of(KEY, "LENT")),
    ],
    ids=["on the device", "in its slot", "lent"],
)
def test_what_lands_while_its_key_is_trained_inline_is_not_trained(
    shm_dir: Path, start_daemon: StartDaemon, mode: str, is_device_full: bool, where: Condition
) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> MicroBatchState:
        if is_device_full:
            assert (await handle.stage_batch(payload(3), key="ahead"))["staged"]
        async with (
            TrainerHandle(served.endpoint, control_endpoint=daemon.control_endpoint) as second,
            StagingClient(daemon.control_endpoint) as watching,
        ):
            inline = asyncio.create_task(handle.train_step(payload(1), KEY))
            await gate.reached()
            assert await second.stage(payload(2), key=KEY) == KEY
            await asyncio.to_thread(see, daemon, where)
            waiting = asyncio.create_task(watching.wait(KEY, timeout_s=EVENT_S))
            staged = asyncio.create_task(second.train_step(stage_key=KEY))
            assert not inline.done()
            gate.open()
            trained = await inline
            assert (trained.value["number"], trained.source) == (1, "inline")
            with pytest.raises(RemoteCallError, match="AlreadyTrainedError"):
                await staged
            heard = await waiting
        if is_device_full:
            assert (await handle.train_step(stage_key="ahead")).value["number"] == 3
        return heard

    daemon = start_daemon(slots=1)
    with Served(shm_dir, Engine(inside=lambda _: gate()), mode, daemon=daemon) as served:
        assert talk_to(daemon, served, run) is MicroBatchState.CONSUMED
        check_that_it_is_over(daemon, served)
        assert served.engine.trained == ([1, 3, 9] if is_device_full else [1, 9])


def test_what_lands_after_its_key_was_trained_inline_is_thrown_away_and_harms_nobody(
    shm_dir: Path, start_daemon: StartDaemon
) -> None:
    gate = Gate("the step")
    daemon = start_daemon(slots=1)
    with Served(shm_dir, Engine(inside=lambda _: gate()), daemon=daemon) as served:
        inline = Call(lambda: talk_to(daemon, served, lambda handle: handle.train_step(payload(1), KEY)))
        gate.wait_until_reached()
        late = Stager(daemon, 2, KEY)
        see(daemon, lambda status: status.slots[0].key == KEY and status.slots[0].received_bytes > 0)
        deaf = late.stand_still()
        gate.open()
        assert inline.result().source == "inline"
        see(daemon, all_free)
        # The slot is another one's by now, and half full, when the rest of the late one's bytes comes.
        other = Stager(daemon, 3, "other")
        see(daemon, slot_of("other", "FILLING"))
        late.pace.gate.open()
        see(daemon, lambda status: status.counters.get(ChunkFault.NOT_GRANTED, 0) >= 3)
        deaf.open()
        outcome = late.call.result()
        assert isinstance(outcome, Refusal)
        assert outcome.code is RefusalCode.CONSUMED
        other.pace.gate.open()
        assert isinstance(other.call.result(), Staged)
        trained = talk_to(daemon, served, lambda handle: handle.train_step(stage_key="other"))
        assert trained.value == {"number": 3, "total": 3 * MANY_ROWS * SHAPE[1]}
        check_that_it_is_over(daemon, served)
        assert served.engine.trained == [1, 3, 9]


def test_what_lands_while_an_inline_step_of_its_key_fails_is_trained_once(
    shm_dir: Path, start_daemon: StartDaemon
) -> None:
    gate = Gate("the step")

    def fail(number: int) -> Any:
        if number == 1:
            gate()
            boom()

    async def run(handle: TrainerHandle) -> None:
        inline = asyncio.create_task(handle.train_step(payload(1), KEY))
        await gate.reached()
        assert await handle.stage(payload(2), key=KEY) == KEY
        # What the trainer has not been lent yet, a step with a payload does not wait for.
        await asyncio.to_thread(see, daemon, on_device(KEY))
        gate.open()
        with pytest.raises(RemoteCallError, match="boom"):
            await inline
        trained = await handle.train_step(payload(2), KEY)
        assert (trained.value["number"], trained.source) == (2, "staged")

    daemon = start_daemon(slots=1)
    with Served(shm_dir, Engine(inside=fail), daemon=daemon) as served:
        talk_to(daemon, served, run)
        check_that_it_is_over(daemon, served)
        assert served.engine.trained == [1, 2, 9]


def test_a_key_that_was_dropped_from_its_slot_and_trained_inline_is_not_trained_by_the_next_trainer(
    shm_dir: Path, start_daemon: StartDaemon
) -> None:
    async def drop_and_train(handle: TrainerHandle) -> None:
        assert await handle.stage(payload(1), key=KEY) == KEY
        await handle.reset_staged()
        assert (await handle.train_step(payload(1), KEY)).source == "inline"

    async def stage_again(handle: TrainerHandle) -> str | Refusal:
        return await handle.stage(payload(2), key=KEY)

    daemon = start_daemon(slots=1)
    with Served(shm_dir, daemon=daemon) as served:
        talk_to(daemon, served, drop_and_train)
    with Served(shm_dir, daemon=daemon) as served:
        outcome = talk_to(daemon, served, stage_again)
    assert isinstance(outcome, Refusal)
    assert outcome.code is RefusalCode.CONSUMED
