"""Steps over real sockets: what is trained, what fails, and whose fault it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay import NotBegunError, Refusal, RemoteCallError, TrainerHandle
from forebay.wire import RefusalCode, TreeError, TreeRegistry

from .served import MODES, SHAPE, Engine, Served, boom, payload, talk

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
