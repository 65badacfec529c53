"""Messages that are lost, repeated and late on their way: each call runs once, or never if it was given up."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import RemoteCallError, TrainerHandle, WaitTimeoutError
from forebay.wire import (
    Call,
    CancelCall,
    ChunkHeader,
    GetWorkerStatus,
    Granted,
    Hello,
    InProgress,
    Message,
    Raised,
    RefusalCode,
    Refused,
    Returned,
    WorkerStatus,
    WorkerWelcome,
)

from ..trainer.gate import Gate
from .fault_cases import CASES, EXPECTED, KEY, METHODS, Counting, run
from .lossy_router import Fate, first
from .served import handle_to, payload, see, talk


@METHODS
def test_a_request_that_is_lost_is_run_once(shm_dir: Path, name: str) -> None:
    run(name, shm_dir, first(Call, Fate.LOSE))


@METHODS
def test_a_call_whose_answer_is_lost_five_times_is_run_once(shm_dir: Path, name: str) -> None:
    counting = run(name, shm_dir, first(Returned, Fate.LOSE, 5))
    answers = counting.router.of_kind(Returned)[-6:]
    assert len({(answer.value.manifest, answer.value.body) for answer in answers if answer.value}) == 1


@METHODS
@pytest.mark.parametrize("kind", [Call, Granted, InProgress, Returned])
def test_what_comes_twice_counts_once(shm_dir: Path, name: str, kind: type[Message]) -> None:
    run(name, shm_dir, first(kind, Fate.TWICE, 1000))


@METHODS
@pytest.mark.parametrize("kind", [Granted, InProgress])
def test_what_is_said_on_the_way_may_be_lost(shm_dir: Path, name: str, kind: type[Message]) -> None:
    if CASES[name].has_payload:
        run(name, shm_dir, first(kind, Fate.LOSE, 2))


@METHODS
def test_a_connection_that_is_lost_with_the_answer_is_made_anew(shm_dir: Path, name: str) -> None:
    run(name, shm_dir, first(Call, Fate.PASS_AND_CUT))


@METHODS
def test_the_answer_to_a_late_request_is_the_recorded_one(shm_dir: Path, name: str) -> None:
    case, counting = CASES[name], Counting(shm_dir)

    async def through(handle: TrainerHandle) -> Any:
        if case.prepare is not None:
            case.prepare(counting.served)
        before = len(counting.router.of_kind(Returned))
        counting.router.decide = first(Call, Fate.HOLD)
        value = await case.call(handle)
        # The repeat was quicker than the first one, which arrives when all is over.
        counting.router.release()
        answers = await asyncio.to_thread(counting.router.wait_for, Returned, before + 2)
        assert answers[-1].value == answers[-2].value
        return value

    with counting.served, counting.router:
        assert talk(counting.router.endpoint, through) == EXPECTED[name]
    assert counting.ran(case.method) == 1


@METHODS
def test_a_call_that_was_given_up_before_it_arrived_never_runs(shm_dir: Path, name: str) -> None:
    case, counting = CASES[name], Counting(shm_dir)

    async def through(handle: TrainerHandle) -> None:
        if case.prepare is not None:
            case.prepare(counting.served)
        router = counting.router
        router.decide = first(Call, Fate.HOLD, 1000)
        task = asyncio.ensure_future(case.call(handle))
        await asyncio.to_thread(router.wait_for, Call, len(router.of_kind(Call)) + 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(router.wait_for, CancelCall)
        router.release()
        refusals = await asyncio.to_thread(router.wait_for, Refused, 3)
        assert {refusal.code for refusal in refusals} == {RefusalCode.CANCELLED}
        assert counting.ran(case.method) == 0
        assert counting.served.memory == 0
        # And the next call of the same handle is a call of its own.
        router.decide = first(Message, Fate.PASS)
        assert await case.call(handle) == EXPECTED[name]

    with counting.served, counting.router:
        talk(counting.router.endpoint, through)
    assert counting.ran(case.method) == 1


def test_a_call_that_times_out_and_arrives_late_never_runs(shm_dir: Path) -> None:
    counting = Counting(shm_dir)

    async def through(handle: TrainerHandle) -> None:
        counting.router.decide = first(Call, Fate.HOLD, 1000)
        with pytest.raises(WaitTimeoutError, match="the answer to update; see what the trainer worker at"):
            await handle.update(timeout_s=0.2)
        await asyncio.to_thread(counting.router.wait_for, CancelCall)
        counting.router.release()
        await asyncio.to_thread(counting.router.wait_for, Refused)

    with counting.served, counting.router:
        talk(counting.router.endpoint, through)
    assert counting.served.engine.updates == []


def test_a_step_that_runs_when_its_caller_times_out_goes_on_and_its_key_counts_as_trained(shm_dir: Path) -> None:
    gate = Gate("the step")
    counting = Counting(shm_dir)
    counting.served.engine.inside = lambda _: gate()

    async def through(handle: TrainerHandle) -> None:
        task = asyncio.create_task(handle.train_step(payload(1), KEY, timeout_s=1))
        await gate.reached()
        with pytest.raises(WaitTimeoutError, match="the answer to fwd_bwd"):
            await task
        [cancel] = await asyncio.to_thread(counting.router.wait_for, CancelCall)
        gate.open()
        await see(handle, lambda status: not status.calls, "the end of the step")
        assert cancel.call.number == 1
        with pytest.raises(RemoteCallError, match="AlreadyTrainedError"):
            await handle.train_step(payload(1), KEY)

    with counting.served, counting.router:
        talk(counting.router.endpoint, through)
    assert counting.served.engine.trained == [1]


def test_a_step_that_failed_is_not_run_again_by_its_repeats(shm_dir: Path) -> None:
    counting = Counting(shm_dir)

    def boom(_: int) -> None:
        raise RuntimeError("boom")

    counting.served.engine.inside = boom

    async def through(handle: TrainerHandle) -> None:
        counting.router.decide = first(Raised, Fate.LOSE, 5)
        with pytest.raises(RemoteCallError, match="boom"):
            await handle.train_step(payload(1), KEY)
        answers = counting.router.wait_for(Raised, 6)
        assert len(answers) == 6
        assert len({answer.traceback for answer in answers}) == 1

    with counting.served, counting.router:
        talk(counting.router.endpoint, through)
    assert counting.served.engine.trained == [1]


@pytest.mark.parametrize("kind", [Hello, WorkerWelcome])
def test_a_lost_hello_or_welcome_is_said_again(shm_dir: Path, kind: type[Message]) -> None:
    counting = Counting(shm_dir)
    counting.router.decide = first(kind, Fate.LOSE, 3)
    with counting.served, counting.router:
        assert talk(counting.router.endpoint, lambda handle: handle.update()) == {"updates": 1}


@pytest.mark.parametrize("kind", [GetWorkerStatus, WorkerStatus])
def test_a_lost_question_for_the_status_is_asked_again(shm_dir: Path, kind: type[Message]) -> None:
    counting = Counting(shm_dir)
    counting.router.decide = first(kind, Fate.LOSE, 3)
    with counting.served, counting.router:
        assert talk(counting.router.endpoint, lambda handle: handle.status()).state == "ready"


def test_many_calls_through_much_loss_each_run_once(shm_dir: Path) -> None:
    counting = Counting(shm_dir)
    fates, rng = list(Fate), np.random.default_rng(7)

    def decide(message: Message) -> Fate:
        if isinstance(message, Hello | WorkerWelcome):
            return Fate.PASS
        return fates[rng.choice(len(fates), p=[0.5, 0.25, 0.15, 0.05, 0.05])]

    def damage(_: ChunkHeader, body: bytes) -> list[bytes]:
        return [[body], [], [body, body], [bytes(len(body))]][rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])]

    async def through(handle: TrainerHandle) -> None:
        counting.router.decide, counting.router.damage = decide, damage
        steps = [handle.train_step(payload(number), f"k{number}") for number in range(10)]
        others = [handle.call("count", payload(number)) for number in range(10)]
        updates = [handle.update() for _ in range(5)]
        done = asyncio.gather(*steps, *others, *updates)
        while not done.done():
            await asyncio.wait([done], timeout=0.2)
            counting.router.release()
        trained = done.result()[:10]
        assert [step.value["number"] for step in trained] == list(range(10))
        counts = done.result()[10:20]
        assert sorted(count for count, _ in counts) == list(range(1, 11))
        assert [name for _, name in counts] == [f"batch {number}" for number in range(10)]

    with counting.served, counting.router:
        talk(counting.router.endpoint, through)
        assert Counter(counting.served.engine.trained) == dict.fromkeys(range(10), 1)
        assert len(counting.served.engine.updates) == 5


def test_two_handles_with_the_same_trouble_do_not_meet(shm_dir: Path) -> None:
    counting = Counting(shm_dir)
    counting.router.decide = first(Returned, Fate.LOSE, 4)

    async def both(handle: TrainerHandle) -> None:
        async with handle_to(counting.router.endpoint) as other:
            values = await asyncio.gather(handle.call("count", payload(1)), other.call("count", payload(2)))
        assert {name for _, name in values} == {"batch 1", "batch 2"}
        assert {count for count, _ in values} == {1, 2}

    with counting.served, counting.router:
        talk(counting.router.endpoint, both)
    assert sorted(counting.counted) == ["batch 1", "batch 2"]
