"""A worker and a handle over real sockets: what runs beside what, what comes back, and whose fault it is."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay import NotBegunError, Refusal, RemoteCallError, TrainerHandle
from forebay.wire import RefusalCode, RefusedError, TreeError, TreeRegistry, UsageError

from .served import SHAPE, DeferringEngine, Engine, Gate, Served, gather, payload, see, states, talk

MODES = pytest.mark.parametrize("mode", ["off", "stage", "serialize"])


def boom(_: Any = None) -> None:
    raise RuntimeError("boom")


# --- steps ---


@MODES
def test_a_step_returns_what_the_engine_made_of_its_payload(shm_dir: Path, mode: str) -> None:
    with Served(shm_dir, mode=mode) as served:
        trained = talk(served.endpoint, lambda handle: handle.train_step(payload(3), scale=2.0))
    assert trained.value["total"] == 3 * 2.0 * SHAPE[0] * SHAPE[1]
    assert isinstance(trained.value["total"], np.ndarray)
    assert (trained.value["number"], trained.omitted, trained.key, trained.source) == (3, "", "", "inline")
    assert min(trained.wait_s, trained.dispatch_s, trained.ready_s) >= 0
    assert trained.ready_s >= trained.dispatch_s
    assert trained.idle_s == 0


def test_a_step_trains_what_was_staged_in_the_trainer(shm_dir: Path) -> None:
    async def both(handle: TrainerHandle) -> Any:
        answer = await handle.stage_batch(payload(3), key="k")
        assert (answer["staged"], answer["key"], answer["replaced"]) == (True, "k", False)
        return await handle.train_step(stage_key="k")

    with Served(shm_dir) as served:
        trained = talk(served.endpoint, both)
    assert (trained.key, trained.source, trained.value["number"]) == ("k", "staged", 3)


@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_a_step_with_key_and_payload_trains_what_is_staged_if_it_is_there(shm_dir: Path, mode: str) -> None:
    async def both(handle: TrainerHandle) -> list[str]:
        await handle.stage_batch(payload(1), key="k1")
        return [(await handle.train_step(payload(number), f"k{number}")).source for number in (1, 2)]

    with Served(shm_dir, mode=mode) as served:
        assert talk(served.endpoint, both) == ["staged", "inline"]
        assert served.engine.trained == [1, 2]


def test_a_trainer_without_a_daemon_stages_nothing_ahead_and_says_so(shm_dir: Path) -> None:
    with Served(shm_dir) as served:

        async def stage(handle: TrainerHandle) -> Any:
            assert not handle.stages
            return await handle.stage(payload(1), key="k")

        outcome = talk(served.endpoint, stage)
    assert outcome == Refusal("k", RefusalCode.STAGING_OFF, "the trainer is not attached to a daemon")


def test_a_trainer_in_off_stages_nothing_and_says_so(shm_dir: Path) -> None:
    async def stage(handle: TrainerHandle) -> None:
        assert not handle.stages
        outcome = await handle.stage(payload(1))
        assert isinstance(outcome, Refusal)
        assert outcome.code is RefusalCode.STAGING_OFF
        assert "TUNIX_STAGE_BATCH" in outcome.words
        answer = await handle.stage_batch(payload(1), key="k")
        assert not answer["staged"]
        assert "TUNIX_STAGE_BATCH" in answer["reason"]
        await handle.reset_staged()

    with Served(shm_dir, mode="off") as served:
        talk(served.endpoint, stage)


# --- beside each other ---


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


# --- failures ---


def test_a_staging_that_fails_is_an_answer_and_the_worker_stays_ready(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        answer = await handle.stage_batch(payload(1) | {"wide": np.zeros(3, np.int64)}, key="k")
        assert answer["staged"] is False
        assert "64-bit" in answer["reason"]
        assert (await handle.status()).state == "ready"
        assert (await handle.stage_batch(payload(1), key="k"))["staged"]

    with Served(shm_dir) as served:
        talk(served.endpoint, run)


@MODES
@pytest.mark.parametrize("cure", ["a step", "a reset"])
def test_a_failed_step_is_an_error_with_the_workers_traceback(shm_dir: Path, mode: str, cure: str) -> None:
    engine = Engine(inside=boom)

    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(RemoteCallError) as caught:
            await handle.train_step(payload(1), "k")
        error = caught.value
        assert not isinstance(error, NotBegunError)
        assert (error.method, error.kind, error.state) == ("fwd_bwd", "RuntimeError", "failed")
        assert "fwd_bwd raised in the trainer's worker, which is failed: RuntimeError: boom" in str(error)
        assert 'raise RuntimeError("boom")' in error.traceback
        assert any('raise RuntimeError("boom")' in note for note in error.__notes__)
        status = await handle.status()
        assert (status.state, status.failure) == ("failed", "fwd_bwd: RuntimeError: boom")
        engine.inside = lambda _: None
        if cure == "a step":
            await handle.train_step(payload(1), "k")  # its key may come again
        else:
            await handle.reset_staged()
        assert (await handle.status()).state == "ready"

    with Served(shm_dir, engine, mode) as served:
        talk(served.endpoint, run)


def test_an_error_of_the_device_is_an_error_of_its_step(shm_dir: Path) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("the device failed")

    def work(_: int) -> Any:
        return jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((3,), jnp.float32), x))(jnp.ones(3))

    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(RemoteCallError, match="the device failed") as caught:
            await handle.train_step(payload(1))
        assert not isinstance(caught.value, NotBegunError)
        assert (await handle.status()).state == "failed"

    with Served(shm_dir, Engine(inside=work)) as served:
        talk(served.endpoint, run)


def test_a_step_whose_micro_batch_is_absent_has_not_begun(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(NotBegunError, match="no micro-batch with the key 'absent' is staged") as caught:
            await handle.train_step(stage_key="absent")
        assert (caught.value.kind, caught.value.state) == ("NotStagedError", "ready")
        assert (await handle.status()).state == "ready"
        assert (await handle.train_step(payload(1), "absent")).source == "inline"

    with Served(shm_dir) as served:
        talk(served.endpoint, run)


@MODES
def test_a_key_is_trained_once_and_that_is_no_failure(shm_dir: Path, mode: str) -> None:
    async def run(handle: TrainerHandle) -> None:
        await handle.train_step(payload(1), "k")
        for _ in range(3):
            with pytest.raises(RemoteCallError, match="'k' was trained by this worker already") as caught:
                await handle.train_step(payload(2), "k")
            assert not isinstance(caught.value, NotBegunError), "it must not be passed again"
            assert (caught.value.kind, caught.value.state) == ("AlreadyTrainedError", "ready")
        assert not (await handle.stage_batch(payload(3), key="k"))["staged"]

    with Served(shm_dir, mode=mode) as served:
        talk(served.endpoint, run)
        assert served.engine.trained == [1]


def test_a_payload_that_cannot_travel_is_the_callers_error_and_nothing_is_sent(shm_dir: Path) -> None:
    async def run(handle: TrainerHandle) -> None:
        for call in (
            lambda: handle.train_step({"x": {1, 2}}),
            lambda: handle.train_step(payload(1), scale=1j),
            lambda: handle.call("mine", option=object()),
        ):
            with pytest.raises(TreeError):
                await call()
        assert (await handle.status()).counters == {}

    with Served(shm_dir) as served:
        talk(served.endpoint, run)


@dataclasses.dataclass
class Theirs:
    x: Any


def test_a_class_that_the_worker_does_not_know_is_a_step_that_has_not_begun(shm_dir: Path) -> None:
    registry = TreeRegistry()
    registry.register(Theirs)

    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(NotBegunError, match="not registered here"):
            await handle.train_step(Theirs(np.ones(3)))
        assert (await handle.status()).state == "ready"

    with Served(shm_dir) as served:
        talk(served.endpoint, run, registry=registry)
        assert served.memory == 0


# --- methods ---


def test_users_methods_take_payloads_and_options(shm_dir: Path) -> None:
    def mine(batch: Any = None, *, factor: int = 1) -> Any:
        return (
            None if batch is None else {"sum": int(batch["x"].sum()) * factor, "type": type(batch["x"]).__name__}
        )

    async def run(handle: TrainerHandle) -> None:
        assert "mine" in handle.methods
        value = await handle.call("mine", {"x": np.arange(4)}, factor=10)
        assert value == {"sum": 60, "type": "ndarray"}
        assert await handle.call("mine") is None
        with pytest.raises(RemoteCallError, match="unexpected keyword argument 'wrong'") as caught:
            await handle.call("mine", wrong=1)
        assert caught.value.state == "ready"

    with Served(shm_dir, methods={"mine": mine}) as served:
        talk(served.endpoint, run)


@pytest.mark.parametrize("name", ["absent", "", "Fwd_Bwd", "__init__", "a.b", "\x1b[31m", "x" * 10_000])
def test_a_method_that_is_not_there_is_a_refusal_that_names_it(shm_dir: Path, name: str) -> None:
    async def run(handle: TrainerHandle) -> None:
        with pytest.raises(RefusedError) as caught:
            await handle.call(name)
        assert caught.value.code == RefusalCode.UNKNOWN_METHOD
        assert "the worker has no method" in str(caught.value) or len(name) > 100
        assert str(caught.value).isprintable()

    with Served(shm_dir) as served:
        talk(served.endpoint, run)


def test_a_deferred_update_is_there_where_the_engine_has_one(shm_dir: Path) -> None:
    async def absent(handle: TrainerHandle) -> None:
        with pytest.raises(RefusedError, match="no method 'apply_deferred_update'"):
            await handle.apply_deferred_update()

    async def present(handle: TrainerHandle) -> None:
        assert [await handle.apply_deferred_update() for _ in range(2)] == [1, 2]

    with Served(shm_dir) as served:
        talk(served.endpoint, absent)
    with Served(shm_dir, DeferringEngine()) as served:
        talk(served.endpoint, present)


def test_a_method_is_registered_before_the_worker_serves(shm_dir: Path) -> None:
    with Served(shm_dir, methods={"mine": lambda: 1}) as served:
        talk(served.endpoint, lambda handle: handle.call("mine"))
        with pytest.raises(UsageError, match="'late' was registered too late; register it before serve"):
            served.worker.register("late", boom)
        for name in ("mine", "fwd_bwd", "not a name"):
            with pytest.raises(UsageError):
                served.worker.register(name, boom)
        with pytest.raises(RefusedError):
            talk(served.endpoint, lambda handle: handle.call("late"))


# --- what comes back ---


class Pair(NamedTuple):
    loss: Any
    steps: int


def test_results_come_back_as_numpy_arrays_and_registered_classes(shm_dir: Path) -> None:
    registry = TreeRegistry()
    registry.register(Pair)
    with Served(shm_dir, registry=registry, methods={"mine": lambda: Pair(jnp.arange(3), 7)}) as served:
        value = talk(served.endpoint, lambda handle: handle.call("mine"), registry=registry)
        assert type(value) is Pair
        assert type(value.loss) is np.ndarray
        assert (value.loss.tolist(), value.steps) == ([0, 1, 2], 7)


def donated() -> jax.Array:
    array = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    return array


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: jnp.zeros(1000), "4000 bytes in 1 leaves are over 2048 (max_answer_bytes)"),
        (lambda: {"loss": 1.0, "other": Pair(1, 2)}, "not registered"),
        (lambda: {"grads": donated()}, "deleted"),
        (lambda: {1: 2, "a": 3}, "sorting"),
    ],
)
def test_a_result_that_does_not_travel_is_omitted_and_the_step_is_done(
    shm_dir: Path, made: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(handle: TrainerHandle) -> None:
        trained = await handle.train_step(payload(1), "k")
        assert trained.value is None
        assert reason in trained.omitted
        assert (await handle.status()).state == "ready"
        assert await handle.call("mine") is None

    with Served(shm_dir, Engine(inside=lambda _: made()), methods={"mine": made}, max_answer_bytes=2048) as served:
        talk(served.endpoint, run)
    [record] = [record for record in caplog.records if "answer_omitted" in record.getMessage()]
    assert "method=mine" in record.getMessage()
    assert reason in record.getMessage()


def test_a_class_that_the_caller_does_not_know_is_omitted_and_the_step_is_done(shm_dir: Path) -> None:
    registry = TreeRegistry()
    registry.register(Pair)
    with Served(shm_dir, Engine(inside=lambda _: Pair(1, 2)), registry=registry) as served:
        trained = talk(served.endpoint, lambda handle: handle.train_step(payload(1)))
        assert trained.value is None
        assert "got Pair" in trained.omitted
        assert "not registered here" in trained.omitted


def test_a_long_text_comes_back_if_the_worker_lets_it(shm_dir: Path) -> None:
    with Served(shm_dir, methods={"mine": lambda: "x" * 3_000_000}, max_answer_bytes=4 << 20) as served:
        assert len(talk(served.endpoint, lambda handle: handle.call("mine"))) == 3_000_000


def test_options_may_be_as_large_as_a_manifest_in_every_part(shm_dir: Path) -> None:
    text, array = "x" * 1_000_000, np.arange(1 << 18, dtype=np.int32)
    tree = {"note": "y" * 1_000_000, "x": np.ones(3)}

    def mine(batch: Any, text: str, array: Any) -> Any:
        return len(text), len(batch["note"]), int(array.astype(np.int64).sum())

    async def run(handle: TrainerHandle) -> Any:
        return await handle.call("mine", tree, text=text, array=array, timeout_s=60)

    with Served(shm_dir, methods={"mine": mine}) as served:
        assert talk(served.endpoint, run) == (1_000_000, 1_000_000, int(array.astype(np.int64).sum()))
