"""Messages that are lost, repeated and late on their way: each call runs once, or never if it was given up."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import RemoteCallError, TrainerHandle, WaitTimeoutError
from forebay.wire import (
    Call,
    CancelCall,
    ChunkFault,
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

from .lossy_router import Decide, Fate, LossyRouter, first
from .served import DeferringEngine, Gate, Served, handle_to, payload, see, talk

KEY = "k"


@dataclasses.dataclass(frozen=True)
class Case:
    """A method of the handle.

    Attributes:
        method: The worker's, by which it is counted.
        call: Calls it.
        has_payload: Whether chunks travel.
        prepare: What the worker does before it.
    """

    method: str
    call: Callable[[TrainerHandle], Awaitable[Any]]
    has_payload: bool = False
    prepare: Callable[[Served], Any] | None = None


async def step_number(step: Awaitable[Any]) -> tuple[str, int, str]:
    trained = await step
    return trained.key, trained.value["number"], trained.source


async def how_staged(staging: Awaitable[dict[str, Any]]) -> bool:
    return bool((await staging)["staged"])


CASES = {
    "an inline step": Case("fwd_bwd", lambda handle: step_number(handle.train_step(payload(1), KEY)), True),
    "a staged step": Case(
        "fwd_bwd",
        lambda handle: step_number(handle.train_step(stage_key=KEY)),
        # Not through the middle man: what is repeated of it would be taken for the step's.
        prepare=lambda served: served.staged.stage_batch(payload(1), key=KEY),
    ),
    "a staging": Case("stage_batch", lambda handle: how_staged(handle.stage_batch(payload(1), key=KEY)), True),
    "an update": Case("update", lambda handle: handle.update(lr=0.5)),
    "a deferred update": Case("apply_deferred_update", lambda handle: handle.apply_deferred_update()),
    "a reset": Case("reset_staged", lambda handle: handle.call("reset_staged")),
    "metrics": Case("metrics", lambda handle: metrics(handle)),
    "a method of the user's": Case("count", lambda handle: handle.call("count", payload(2)), True),
}
EXPECTED = {
    "an inline step": (KEY, 1, "inline"),
    "a staged step": (KEY, 1, "staged"),
    "a staging": True,
    "an update": {"updates": 1, "lr": 0.5},
    "a deferred update": 1,
    "a reset": None,
    "metrics": "ready",
    "a method of the user's": (1, "batch 2"),
}
METHODS = pytest.mark.parametrize("name", CASES)


async def metrics(handle: TrainerHandle) -> Any:
    return (await handle.metrics())["state"]


class Counting:
    """A worker behind a middle man, whose engine and whose method count what is done."""

    def __init__(self, folder: Path) -> None:
        self.counted: list[str] = []
        self.served = Served(folder, DeferringEngine(), methods={"count": self._count})
        self.router = LossyRouter(self.served.endpoint, folder)

    def _count(self, batch: Any) -> tuple[int, str]:
        self.counted.append(batch["name"])
        return len(self.counted), batch["name"]

    def done(self) -> dict[str, int]:
        """Tells how often the engine and the method did something."""
        engine, queue = self.served.engine, self.served.staged.queue.statistics
        return {
            "fwd_bwd": len(engine.trained),
            "update": len(engine.updates),
            "apply_deferred_update": engine.deferred,
            "count": len(self.counted),
            "stage_batch": queue.staged,
        }

    def ran(self, method: str) -> int:
        """Tells how often a method was run."""
        counters = self.served.counters
        return counters.get(f"{method}_returned", 0) + counters.get(f"{method}_raised", 0)


def run(name: str, folder: Path, decide: Decide, damage: Any = None) -> Counting:
    """Has one method called through a fault; checks that it ran once and came to what it should."""
    case, counting = CASES[name], Counting(folder)

    async def through(handle: TrainerHandle) -> Any:
        if case.prepare is not None:
            case.prepare(counting.served)
        counting.router.decide, counting.router.damage = decide, damage
        value = await case.call(handle)
        counting.router.decide, counting.router.damage = first(Message, Fate.PASS), None
        return value

    with counting.served, counting.router:
        value = talk(counting.router.endpoint, through)
    assert value == EXPECTED[name]
    assert counting.ran(case.method) == 1
    assert counting.done().get(case.method, 1) == 1
    assert counting.served.memory == 0
    return counting


# --- requests and answers ---


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
        answers = counting.router.of_kind(Raised)
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


# --- chunks ---

WIDE = {"x": np.arange(3 << 20, dtype=np.uint8).reshape(3, -1), "y": np.arange(7.0)}


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda _: [], None),
        (lambda body: [body, body], ChunkFault.REPEATED),
        (lambda body: [b"\xff" + body[1:]], ChunkFault.WRONG_CHECKSUM),
        (lambda body: [body[:-1]], ChunkFault.WRONG_LENGTH),
        (lambda body: [bytes(len(body)), body], ChunkFault.WRONG_CHECKSUM),
    ],
    ids=["lost", "twice", "damaged", "short", "damaged, then whole"],
)
def test_chunks_that_are_lost_or_damaged_are_sent_again_by_themselves(
    shm_dir: Path, damage: Callable[[bytes], list[bytes]], fault: ChunkFault | None
) -> None:
    met: set[int] = set()

    def first_of_each(header: ChunkHeader, body: bytes) -> list[bytes]:
        if header.span in met:
            return [body]
        met.add(header.span)
        return damage(body)

    def same(batch: Any) -> bool:
        return all(np.array_equal(batch[name], WIDE[name]) for name in WIDE)

    with (
        Served(shm_dir, methods={"same": same}) as served,
        LossyRouter(served.endpoint, shm_dir, damage=first_of_each) as router,
    ):
        assert talk(router.endpoint, lambda handle: handle.call("same", WIDE)) is True
        assert len(met) == 4
        # What comes again when all is complete belongs to nobody any more.
        assert fault is None or served.counters[fault] >= 3
        assert served.memory == 0


def test_only_what_is_missing_is_sent_again(shm_dir: Path) -> None:
    lost: list[ChunkHeader] = []

    def lose_one(header: ChunkHeader, body: bytes) -> list[bytes]:
        if header.span == 1 and not lost:
            lost.append(header)
            return []
        return [body]

    with (
        Served(shm_dir, methods={"take": lambda _: None}) as served,
        LossyRouter(served.endpoint, shm_dir, damage=lose_one) as router,
    ):
        talk(router.endpoint, lambda handle: handle.call("take", WIDE))
        assert Counter(chunk.span for chunk in router.chunks) == {0: 1, 1: 2, 2: 1, 3: 1}


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
