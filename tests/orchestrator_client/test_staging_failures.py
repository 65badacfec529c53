"""Staging with a real daemon: what a call that failed leaves, which is nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.daemon import LocalDaemon, local_daemon
from forebay.orchestrator_client import Refusal, Staged, StagingClient
from forebay.wire import BrokenError, RefusalCode, TreeError, UsageError, WaitTimeoutError

from .staging_desk import GOOD, MIB, PATIENCE_S, in_use, run, small_chunks, until


@dataclasses.dataclass
class Unregistered:
    x: Any


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalDaemon]:
    with small_chunks() as daemon:
        yield daemon


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
