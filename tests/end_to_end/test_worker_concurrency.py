"""Calls over real sockets: what runs beside what, and in which order."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay import RemoteCallError, TrainerHandle

from ..trainer.gate import Gate
from .served import MODES, Engine, Served, gather, payload, see, states, talk


def test_in_stage_the_next_micro_batch_is_staged_while_a_step_blocks(shm_dir: Path) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        await handle.stage_batch(payload(1), key="k1")
        step = asyncio.create_task(handle.train_step(stage_key="k1"))
        await gate.reached()
        answer = await handle.stage_batch(payload(2), key="k2")
        assert answer["staged"]
        assert await handle.update(lr=0.5) == {"updates": 1, "lr": 0.5}
        assert (await handle.metrics())["queue"]["staged"] == 2
        await handle.call("reset_staged")
        assert not step.done()
        gate.open()
        assert (await step).value["number"] == 1

    with Served(shm_dir, Engine(inside=lambda _: gate())) as served:
        talk(served.endpoint, run)


@pytest.mark.parametrize("mode", ["off", "serialize"])
def test_in_off_and_serialize_staging_waits_for_the_step(shm_dir: Path, mode: str) -> None:
    gate = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        step = asyncio.create_task(handle.train_step(payload(1)))
        await gate.reached()
        rest = [
            asyncio.create_task(handle.stage_batch(payload(2), key="k2")),
            asyncio.create_task(handle.update()),
        ]
        expected = ["fwd_bwd running", "stage_batch queued", "update queued"]
        await see(handle, lambda status: sorted(states(status)) == expected, "two calls that wait")
        assert not any(task.done() for task in rest)
        gate.open()
        await asyncio.gather(step, *rest)

    with Served(shm_dir, Engine(inside=lambda _: gate()), mode) as served:
        talk(served.endpoint, run)


@MODES
def test_methods_of_one_line_run_in_their_order_one_at_a_time(shm_dir: Path, mode: str) -> None:
    ran: list[int] = []
    inside = threading.Lock()

    def note(number: int) -> int:
        assert inside.acquire(blocking=False), "two at once"
        ran.append(number)
        inside.release()
        return number

    async def run(handle: TrainerHandle) -> list[Any]:
        return await gather(*(handle.call("note", number=number) for number in range(50)))

    with Served(shm_dir, mode=mode, methods={"note": note}) as served:
        assert talk(served.endpoint, run) == list(range(50))
    assert ran == list(range(50))


@MODES
def test_steps_run_in_their_order_one_at_a_time(shm_dir: Path, mode: str) -> None:
    async def run(handle: TrainerHandle) -> list[Any]:
        steps = [await handle.train_step(payload(number)) for number in range(5)]
        return [step.value["number"] for step in steps]

    with Served(shm_dir, mode=mode) as served:
        assert talk(served.endpoint, run) == list(range(5))
        assert served.engine.trained == list(range(5))


def test_status_is_answered_while_everything_blocks(shm_dir: Path) -> None:
    gates = {name: Gate(name) for name in ("mine", "other")}
    step = Gate("the step")

    async def run(handle: TrainerHandle) -> None:
        calls = [asyncio.create_task(handle.train_step(payload(1)))]
        calls += [asyncio.create_task(handle.call(name)) for name in gates]
        for gate in (step, *gates.values()):
            await gate.reached()
        calls.append(asyncio.create_task(handle.update()))
        status = await see(handle, lambda status: len(status.calls) == 4, "four calls")
        assert sorted(states(status)) == ["fwd_bwd running", "mine running", "other running", "update queued"]
        assert {call.client for call in status.calls} == {handle._calls.client_id}
        assert (status.mode, status.state, status.draining) == ("stage", "ready", False)
        for gate in (step, *gates.values()):
            gate.open()
        await asyncio.gather(*calls)
        assert (await handle.status()).calls == ()

    with Served(
        shm_dir,
        Engine(inside=lambda _: step()),
        methods={"mine": gates["mine"]},
        concurrent={"other": gates["other"]},
    ) as served:
        talk(served.endpoint, run)


def test_two_handles_share_a_worker_and_each_hears_of_its_own_calls(shm_dir: Path) -> None:
    with Served(shm_dir, methods={"echo": lambda value: value}) as served:

        async def run(first: TrainerHandle) -> None:
            async with TrainerHandle(served.endpoint, name="second") as second:
                handles = [first, second] * 20
                calls = [handle.call("echo", value=number) for number, handle in enumerate(handles)]
                assert await asyncio.gather(*calls) == list(range(40))
                await first.train_step(payload(1), "k")
                with pytest.raises(RemoteCallError, match="AlreadyTrainedError"):
                    await second.train_step(payload(1), "k")

        talk(served.endpoint, run)
        assert served.engine.trained == [1]
