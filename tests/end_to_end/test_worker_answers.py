"""Methods of the user's over real sockets, and what comes back of any method."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay import RemoteCallError, TrainerHandle
from forebay.wire import RefusalCode, RefusedError, TreeRegistry, UsageError

from .served import DeferringEngine, Engine, Served, boom, payload, talk

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
