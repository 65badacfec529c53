"""Staging with a real daemon: what lies in the slots, and what a failed call leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from forebay.daemon import LocalDaemon, local_daemon
from forebay.orchestrator_client import Refusal, Staged, StagingClient
from forebay.shm import SlotView
from forebay.wire import (
    BrokenError,
    RefusalCode,
    SlotStatus,
    Status,
    TreeError,
    TreeRegistry,
    UsageError,
    WaitTimeoutError,
    decode_manifest,
    dtype_of,
    unflatten,
)

PATIENCE_S = 60.0
SLOTS = 40
MIB = 1 << 20
REGISTRY = TreeRegistry()
GOOD = {"tokens": np.arange(5000, dtype=np.int32), "mask": np.ones((3, 7), bool)}


@REGISTRY.register
@dataclasses.dataclass
class Rollout:
    tokens: Any
    reward: Any


@dataclasses.dataclass
class Unregistered:
    x: Any


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalDaemon]:
    with local_daemon(
        slots=SLOTS, slot_initial_bytes=64 << 10, slot_max_bytes=64 * MIB, chunk_bytes=4096, max_depth=6
    ) as daemon:
        yield daemon


@asynccontextmanager
async def connected(daemon: LocalDaemon) -> AsyncIterator[StagingClient]:
    """A client; afterwards the daemon holds nothing."""
    endpoint = daemon.control_endpoint
    async with StagingClient(endpoint, registry=REGISTRY, timeout_s=PATIENCE_S, retry_s=0.5) as client:
        yield client
        await client.reset()
        await until(client, lambda status: not in_use(status), "every slot to be free")


def in_use(status: Status) -> list[SlotStatus]:
    return [slot for slot in status.slots if slot.state != "FREE"]


async def until(client: StagingClient, condition: Callable[[Status], bool], what: str) -> Status:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = await client.status()
        if condition(status):
            return status
    raise AssertionError(f"waited {PATIENCE_S} s for {what}")


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


def run(daemon: LocalDaemon, what: Callable[[StagingClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected(daemon) as client:
            await what(client)

    asyncio.run(main())


# --- what lies in the slot ---


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


# --- what a failed call leaves ---


class Str(str):
    __slots__ = ()


BAD = {
    "object dtype": (np.array([None, 1], object), "['bad']"),
    "void dtype": (np.zeros(3, "V4"), "['bad']"),
    "structured dtype": (np.zeros(3, [("a", "i4")]), "['bad']"),
    "str dtype": (np.array(["a", "b"]), "['bad']"),
    "bytes dtype": (np.array([b"a"]), "['bad']"),
    "datetime dtype": (np.array(["2026-01-01"], "M8[D]"), "['bad']"),
    "timedelta dtype": (np.array([1], "m8[s]"), "['bad']"),
    "long double": (np.zeros(2, np.longdouble), "['bad']"),
    "unregistered class": (Unregistered(np.zeros(2)), "['bad']"),
    "unregistered class deep inside": ([{"x": (1, Unregistered(0))}], "['bad'][0]['x'][1]"),
    "a set": ({1, 2}, "['bad']"),
    "bytes": (b"abc", "['bad']"),
    "a subclass of str": (Str("abc"), "['bad']"),
    "a key that is no str or int": ({1.5: np.zeros(2)}, "['bad']"),
    "an integer out of range": (1 << 64, "['bad']"),
    "a string that is no text": ("\ud800", "['bad']"),
    "too deep": ([[[[[[[np.zeros(2)]]]]]]], "['bad'][0][0][0][0][0]"),
    "larger than slot_max_bytes allows": (np.broadcast_to(np.uint8(0), (64 * MIB + 1,)), "['bad']"),
    "larger than memory": (np.broadcast_to(np.uint8(0), (1 << 50,)), "['bad']"),
    "large static values": (["x" * 2000] * 2000, "manifest"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_tree_that_cannot_travel_is_an_error_that_names_the_place_and_costs_nothing(
    daemon: LocalDaemon, name: str
) -> None:
    value, place = BAD[name]

    async def stage(client: StagingClient) -> None:
        before = await client.status()
        with pytest.raises(TreeError) as caught:
            await client.stage({"good": np.zeros(3), "bad": value}, key="k")
        assert place in str(caught.value)
        after = await client.status()
        assert (in_use(after), after.counters) == (in_use(before), before.counters)
        assert isinstance(await client.stage(GOOD, key="k"), Staged)

    run(daemon, stage)


def test_two_leaves_that_are_too_large_together_are_an_error_that_names_the_larger(daemon: LocalDaemon) -> None:
    async def stage(client: StagingClient) -> None:
        small, large = (np.broadcast_to(np.uint8(0), (size * MIB,)) for size in (30, 40))
        with pytest.raises(TreeError, match=r"largest leaf is \['large'\]"):
            await client.stage({"small": small, "large": large}, key="k")
        assert isinstance(await client.stage(GOOD, key="k"), Staged)

    run(daemon, stage)


@pytest.mark.parametrize("text", ["", "x" * 257, "é" * 129, "\ud800"])
@pytest.mark.parametrize(("name", "told"), [("key", "the key of a micro-batch"), ("queue", "the name of a queue")])
def test_a_name_that_is_none_is_an_error_that_says_so(
    daemon: LocalDaemon, name: str, told: str, text: str
) -> None:
    async def stage(client: StagingClient) -> None:
        names = {"key": "k", "queue": "train"} | {name: text}
        with pytest.raises(UsageError, match=f"^{told}; ") as caught:
            await client.stage(GOOD, key=names["key"], queue=names["queue"])
        assert "1 to 256 bytes of UTF-8" in str(caught.value)
        assert in_use(await client.status()) == []
        assert isinstance(await client.stage(GOOD, key="x" * 256), Staged)

    run(daemon, stage)


@pytest.mark.parametrize("wait_s", [-1.0, float("nan"), float("inf")])
def test_an_impossible_wait_is_refused(daemon: LocalDaemon, wait_s: float) -> None:
    async def stage(client: StagingClient) -> None:
        result = await client.stage(GOOD, key="k", wait_s=wait_s)
        assert isinstance(result, Refusal)
        assert result.code is RefusalCode.BAD_REQUEST

    run(daemon, stage)


def test_a_call_that_gets_no_slot_is_refused_with_who_has_them() -> None:
    async def stage(client: StagingClient) -> None:
        await client.stage(GOOD, key="a")
        result = await client.stage(GOOD, key="b", wait_s=0.0)
        assert isinstance(result, Refusal)
        assert (result.key, result.code) == ("b", RefusalCode.NO_SLOT)
        assert "slot 0 READY 'a'" in result.words
        waiting = asyncio.create_task(client.stage(GOOD, key="b", wait_s=PATIENCE_S))
        await until(client, lambda status: status.waiting_offers == 1, "the offer to wait")
        await client.reset()
        dropped = await waiting
        assert isinstance(dropped, Refusal)
        assert dropped.code is RefusalCode.DROPPED

    with local_daemon(slots=1, slot_initial_bytes=64 << 10) as daemon:
        run(daemon, stage)


BIG = {"x": np.zeros(48 * MIB, np.uint8)}


async def until_some_has_arrived(client: StagingClient) -> None:
    await until(client, lambda status: any(slot.received_bytes for slot in status.slots), "the first bytes")


def test_a_call_that_is_cancelled_in_the_middle_gives_its_slot_back(daemon: LocalDaemon) -> None:
    async def cancel(client: StagingClient) -> None:
        task = asyncio.create_task(client.stage(BIG, key="k"))
        await until_some_has_arrived(client)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(client, lambda status: not in_use(status), "the slot to be free")
        assert isinstance(await client.stage(GOOD, key="k"), Staged)

    run(daemon, cancel)


def test_a_call_that_times_out_in_the_middle_gives_its_slot_back(daemon: LocalDaemon) -> None:
    async def time_out(client: StagingClient) -> None:
        with pytest.raises(WaitTimeoutError, match="'k'"):
            await client.stage(BIG, key="k", timeout_s=0.05)
        await until(client, lambda status: not in_use(status), "the slot to be free")
        assert isinstance(await client.stage(GOOD, key="k"), Staged)

    run(daemon, time_out)


def test_a_call_that_times_out_in_the_line_leaves_the_line() -> None:
    async def time_out(client: StagingClient) -> None:
        await client.stage(GOOD, key="a")
        with pytest.raises(WaitTimeoutError, match="a slot for 'b'"):
            await client.stage(GOOD, key="b", timeout_s=0.1)
        await until(client, lambda status: status.waiting_offers == 0, "the offer to leave the line")
        assert [slot.key for slot in in_use(await client.status())] == ["a"]

    with local_daemon(slots=1, slot_initial_bytes=64 << 10) as daemon:
        run(daemon, time_out)


def test_a_client_that_is_closed_in_the_middle_leaves_no_slot_behind_its_lease() -> None:
    async def main() -> None:
        endpoint = private.control_endpoint
        async with StagingClient(endpoint, timeout_s=PATIENCE_S) as watcher:
            async with StagingClient(endpoint, timeout_s=PATIENCE_S) as client:
                task = asyncio.create_task(client.stage(BIG, key="k"))
                await until_some_has_arrived(watcher)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until(watcher, lambda status: not in_use(status), "the slot to be free")

    with local_daemon(slots=1, slot_initial_bytes=64 << 10, chunk_bytes=4096, fill_lease_s=0.3) as private:
        asyncio.run(main())


def test_a_daemon_that_stops_ends_the_waits_of_its_clients() -> None:
    async def main() -> None:
        async with StagingClient(private.control_endpoint, timeout_s=PATIENCE_S) as client:
            await client.stage(GOOD, key="k")
            wait = asyncio.create_task(client.wait("k"))
            await client.status()
            await asyncio.to_thread(private.close)
            with pytest.raises(BrokenError, match="stopped; still awaited: 'k' to be consumed"):
                await wait

    with local_daemon(slots=1, slot_initial_bytes=64 << 10) as private:
        asyncio.run(main())


def test_nothing_of_a_stopped_daemon_is_left_in_shared_memory() -> None:
    with local_daemon(slots=1, slot_initial_bytes=64 << 10) as private:
        pool = Path(private.pool)
        assert pool.is_dir()
    assert not pool.exists()
