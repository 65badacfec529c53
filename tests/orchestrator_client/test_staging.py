"""Staging with a real daemon: what lies in the slots."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from forebay.daemon import LocalDaemon
from forebay.orchestrator_client import Staged, StagingClient
from forebay.shm import SlotView
from forebay.wire import decode_manifest, dtype_of, unflatten

from .staging_desk import GOOD, MIB, PATIENCE_S, REGISTRY, SLOTS, run, small_chunks


@REGISTRY.register
@dataclasses.dataclass
class Rollout:
    tokens: Any
    reward: Any


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalDaemon]:
    with small_chunks() as daemon:
        yield daemon


async def in_slot(client: StagingClient, daemon: LocalDaemon, key: str) -> Any:
    """Reads what lies in a key's slot, as a trainer would."""
    status = await client.status()
    [slot] = [slot for slot in status.slots if slot.key == key]
    assert slot.state == "READY"
    envelope, body = SlotView(daemon.pool, slot.index).read(slot.generation)
    assert envelope.key == key
    limits = client._welcome.limits
    manifest = decode_manifest(envelope.manifest, limits)
    offsets = manifest.layout(limits.chunk_bytes).offsets
    leaves = [
        np.ndarray(leaf.shape, dtype_of(leaf.dtype, path), buffer=bytes(body[offset : offset + leaf.nbytes]))
        for leaf, path, offset in zip(manifest.leaves, manifest.paths, offsets, strict=True)
    ]
    return unflatten(manifest.structure, leaves, registry=REGISTRY)


def assert_same(found: np.ndarray[Any, Any], sent: Any) -> None:
    sent = np.asarray(sent)
    assert found.shape == sent.shape
    assert found.dtype == sent.dtype.newbyteorder("=")
    assert found.tobytes() == np.ascontiguousarray(sent.astype(found.dtype)).tobytes()


LEAVES: dict[str, Any] = {
    "one": np.arange(3, dtype=np.float32),
    "0-d": np.array(7, dtype=np.int16),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 5), np.float32),
    "many chunks": np.random.default_rng(0).integers(0, 256, 300_000, np.uint8),
    "strided": np.arange(1000, dtype=np.int32)[::3],
    "negative stride": np.arange(10, dtype=np.int32)[::-1],
    "transposed": np.arange(60, dtype=np.float32).reshape(3, 4, 5).T,
    "Fortran order": np.asfortranarray(np.arange(20, dtype=np.int64).reshape(4, 5)),
    "broadcast": np.broadcast_to(np.float32(1.5), (100, 100)),
    "big-endian": np.arange(100, dtype=">i4"),
    "big-endian and strided": np.arange(100, dtype=">f8")[::2],
    "bfloat16": np.arange(50, dtype=ml_dtypes.bfloat16),
    "float8": np.arange(50).astype(ml_dtypes.float8_e4m3fn),
    "complex": np.arange(10) * 1j,
    "read-only": np.frombuffer(b"\1\2\3\4" * 100, np.uint8),
}


@pytest.mark.parametrize("name", LEAVES)
def test_every_kind_of_array_lies_in_the_slot_as_it_was(daemon: LocalDaemon, name: str) -> None:
    async def stage(client: StagingClient) -> None:
        staged = await client.stage({"x": LEAVES[name]}, key="k")
        assert isinstance(staged, Staged)
        assert staged.payload_bytes == LEAVES[name].nbytes
        found = await in_slot(client, daemon, "k")
        assert_same(found["x"], LEAVES[name])

    run(daemon, stage)


def test_a_whole_tree_lies_in_the_slot_as_it_was(daemon: LocalDaemon) -> None:
    arrays = list(LEAVES.values())
    tree = {"all": arrays, 3: Rollout(arrays[0], 0.5), "t": ("static", None, 2**40), "u": (arrays[1], {"v": "w"})}

    async def stage(client: StagingClient) -> None:
        assert isinstance(await client.stage(tree, key="k"), Staged)
        found = await in_slot(client, daemon, "k")
        for array, sent in zip(found["all"], arrays, strict=True):
            assert_same(array, sent)
        assert isinstance(found[3], Rollout)
        assert found[3].reward == 0.5
        assert found["t"] == tree["t"]
        assert found["u"][1] == {"v": "w"}

    run(daemon, stage)


def test_a_tree_of_a_thousand_small_arrays_lies_in_the_slot_as_it_was(daemon: LocalDaemon) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 256, rng.integers(0, 200), np.uint8) for _ in range(1000)]

    async def stage(client: StagingClient) -> None:
        assert isinstance(await client.stage({"x": arrays}, key="k"), Staged)
        found = await in_slot(client, daemon, "k")
        for array, sent in zip(found["x"], arrays, strict=True):
            assert_same(array, sent)

    run(daemon, stage)


def test_arrays_may_be_changed_as_soon_as_stage_has_returned(daemon: LocalDaemon) -> None:
    array = np.random.default_rng(2).integers(0, 256, 4 * MIB, np.uint8)

    async def stage(client: StagingClient) -> None:
        for round_number in range(5):
            array[:] = round_number
            assert isinstance(await client.stage({"x": array}, key=f"k{round_number}"), Staged)
            array[:] = 255
            # Its chunks, if any were sent twice, are on their way still.
            await client.stage(GOOD, key=f"other{round_number}")
        for round_number in range(5):
            found = await in_slot(client, daemon, f"k{round_number}")
            assert (found["x"] == round_number).all()

    run(daemon, stage)


def test_many_calls_at_once_all_succeed_and_mix_nothing(daemon: LocalDaemon) -> None:
    async def stage(client: StagingClient) -> None:
        trees = [{"x": np.full(1 + 997 * index, index, np.int64)} for index in range(SLOTS)]
        calls = [client.stage(tree, key=f"k{index}") for index, tree in enumerate(trees)]
        results = await asyncio.gather(*calls)
        assert {type(result) for result in results} == {Staged}
        for index, tree in enumerate(trees):
            assert_same((await in_slot(client, daemon, f"k{index}"))["x"], tree["x"])

    run(daemon, stage)


def test_several_clients_share_one_daemon(daemon: LocalDaemon) -> None:
    async def stage(client: StagingClient) -> None:
        async def another(name: str) -> None:
            async with StagingClient(daemon.control_endpoint, name=name, timeout_s=PATIENCE_S) as other:
                for index in range(5):
                    tree = {"x": np.full(30_000, ord(name[0]) + index, np.uint8)}
                    assert isinstance(await other.stage(tree, key=f"{name}{index}"), Staged)

        await asyncio.gather(another("a"), another("k"), another("u"))
        for name in "aku":
            for index in range(5):
                found = await in_slot(client, daemon, f"{name}{index}")
                assert (found["x"] == ord(name) + index).all()

    run(daemon, stage)


def test_a_second_call_replaces_the_first_ones_entry_in_place(daemon: LocalDaemon) -> None:
    async def stage(client: StagingClient) -> None:
        for key in ("a", "b"):
            await client.stage(GOOD, key=key)
        await client.stage({"x": np.array([1, 2, 3])}, key="a")
        status = await client.status()
        [queue] = [queue for queue in status.queues if queue.name == "train"]
        assert queue.ready == ("a", "b")
        assert_same((await in_slot(client, daemon, "a"))["x"], np.array([1, 2, 3]))

    run(daemon, stage)
