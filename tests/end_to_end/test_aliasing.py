"""What JAX's CPU backend must not do to a slot."""

from __future__ import annotations

import asyncio
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import forebay
from forebay.trainer import jax_transfer
from forebay.wire import LocalError, TreeError

from .processes import StartDaemon

ROWS = 1 << 16


def tree(fill: int, leaf_offset: int) -> dict[str, Any]:
    """A tree whose large leaf starts at a given offset in the slot."""
    before = {"before": np.zeros(1, np.int32)} if leaf_offset else {}
    return before | {"large": np.full((ROWS, 2), fill, np.int32)}


async def stage(endpoint: str, key: str, value: Any) -> None:
    async with forebay.StagingClient(endpoint) as client:
        assert isinstance(await client.stage(value, key=key), forebay.Staged)


def sharded() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:2]), "x"), PartitionSpec("x"))


@pytest.mark.parametrize("leaf_offset", [0, 64])
@pytest.mark.parametrize("placement", ["default", "one device", "sharded"])
def test_released_slot_never_changes_a_batch_the_trainer_holds(
    start_daemon: StartDaemon, leaf_offset: int, placement: str
) -> None:
    daemon = start_daemon(slots=1)
    large = {"default": None, "one device": jax.devices()[0], "sharded": sharded()}[placement]
    shardings = ({"before": None} if leaf_offset else {}) | {"large": large}
    with forebay.attach(endpoint=daemon.trainer_endpoint, shardings=shardings) as queue:
        asyncio.run(stage(daemon.control_endpoint, "first", tree(1, leaf_offset)))
        with queue.take() as first:
            held = first.tree["large"]
            first.dispatched(held)
            # The pool has one slot, so this fills the very bytes that the first batch came from.
            asyncio.run(stage(daemon.control_endpoint, "second", tree(2, leaf_offset)))
            with queue.take() as second:
                assert np.asarray(second.tree["large"]).min() == 2
            assert np.asarray(held).min() == np.asarray(held).max() == 1
            if placement == "sharded":
                assert len(held.addressable_shards) == 2


def test_a_device_array_inside_a_slot_is_found(start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_transfer, "_private_copy", lambda host: host)
    daemon = start_daemon(slots=1)
    with forebay.attach(endpoint=daemon.trainer_endpoint) as queue:
        asyncio.run(stage(daemon.control_endpoint, "first", tree(1, 64)))
        with pytest.raises(LocalError, match=r"leaf \['\w+'\] aliases the host memory"):
            queue.take()


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_a_64_bit_leaf_is_refused_by_name_unless_a_cast_was_asked_for(
    start_daemon: StartDaemon, dtype: str
) -> None:
    daemon = start_daemon()
    value = {"a": {"wide": np.array([2**32 + 5], dtype)}}
    with forebay.attach(endpoint=daemon.trainer_endpoint) as queue:
        asyncio.run(stage(daemon.control_endpoint, "wide", value))
        with pytest.raises(TreeError, match=rf"leaf \['a'\]\['wide'\] .*{dtype}"):
            queue.take()
        # The queue goes on, and the orchestrator learns what became of it.
        asyncio.run(stage(daemon.control_endpoint, "good", {"x": np.ones(3, np.float32)}))
        with queue.take() as batch:
            assert batch.key == "good"
    with forebay.attach(endpoint=daemon.trainer_endpoint, cast_64bit=True) as queue:
        asyncio.run(stage(daemon.control_endpoint, "cast", value))
        with queue.take() as batch:
            assert batch.tree["a"]["wide"].dtype.itemsize == np.dtype(dtype).itemsize // 2


def test_64_bit_leaves_pass_where_the_mode_is_on(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    jax.config.update("jax_enable_x64", True)
    try:
        with forebay.attach(endpoint=daemon.trainer_endpoint) as queue:
            asyncio.run(stage(daemon.control_endpoint, "wide", {"wide": np.array([2**32 + 5])}))
            with queue.take() as batch:
                assert int(batch.tree["wide"][0]) == 2**32 + 5
    finally:
        jax.config.update("jax_enable_x64", False)
