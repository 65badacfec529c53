"""What a client sends for a grant: what is missing, where it is wanted, and no longer than its call lasts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forebay.orchestrator_client import Staged, StagingClient
from forebay.wire import Abandon, ControlRequest, Offer, WaitTimeoutError

from .daemon_talk import SMALL, Answers, talk
from .fake_daemon import LIMITS, PATIENCE_S, FakeDaemon, grant, staged

BIG = {"x": np.zeros(48 << 20, np.uint8)}
BIG_SPANS = (48 << 20) // LIMITS.chunk_bytes


def answer_with_grant(*missing: tuple[int, int]) -> Callable[[ControlRequest], Answers]:
    return lambda request: [grant(request, *missing)] if isinstance(request, Offer) else None


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("has_turn", [True, False])
def test_the_sender_stops_in_the_middle_of_a_big_transfer_when_its_call_is_cancelled(
    shm_dir: Path, has_turn: bool
) -> None:
    # Nobody reads: the thread waits for room in the middle of its chunks, for ever if nothing stops it.
    async def cancel(client: StagingClient) -> None:
        first = asyncio.create_task(client.stage(BIG, key="first"))
        await asyncio.to_thread(daemon.wait_for, Offer)
        second = asyncio.create_task(client.stage(BIG, key="second"))
        await asyncio.to_thread(daemon.wait_for, Offer, 6)
        before = open_descriptors()
        for task in (first, second) if has_turn else (second, first):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert open_descriptors() == before - 2
        assert not [thread for thread in threading.enumerate() if "sender" in thread.name]

    with FakeDaemon(shm_dir, answer_with_grant((0, BIG_SPANS)), reads_data=False) as daemon:
        talk(daemon.endpoint, cancel)
        assert {abandon.key for abandon in daemon.wait_for(Abandon, 2)} == {"first", "second"}


def test_a_call_times_out_while_another_ones_transfer_is_stuck(shm_dir: Path) -> None:
    async def both(client: StagingClient) -> None:
        stuck = asyncio.create_task(client.stage(BIG, key="stuck"))
        await asyncio.to_thread(daemon.wait_for, Offer)
        with pytest.raises(WaitTimeoutError, match="'k'"):
            await client.stage(SMALL, key="k", timeout_s=0.2)
        assert not stuck.done()
        stuck.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stuck

    with FakeDaemon(shm_dir, answer_with_grant((0, BIG_SPANS)), reads_data=False) as daemon:
        talk(daemon.endpoint, both)


def test_only_what_a_grant_says_is_missing_is_sent(shm_dir: Path) -> None:
    tree = {"x": np.zeros(10 * 4096, np.uint8)}

    async def stage(client: StagingClient) -> None:
        task = asyncio.create_task(client.stage(tree, key="k"))
        chunks = await asyncio.to_thread(daemon.wait_for_chunks, 3)
        assert sorted(chunk.span for chunk in chunks) == [2, 3, 7]
        assert {(chunk.slot, chunk.generation, chunk.token) for chunk in chunks} == {(0, 1, 7)}
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with FakeDaemon(shm_dir, answer_with_grant((2, 2), (7, 1))) as daemon:
        talk(daemon.endpoint, stage, retry_s=PATIENCE_S)
        assert len(daemon.chunks) == 3


def test_a_repeated_grant_is_followed_only_when_nothing_arrives_any_more(shm_dir: Path) -> None:
    tree = {"x": np.zeros(4 * 4096, np.uint8)}

    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        spans = [chunk.span for chunk in daemon.chunks]
        if not spans:
            return [grant(request, (0, 4))]
        if spans.count(3) > 1:
            return [staged(request)]
        # Two bytes more each time up to the fourth, then no more.
        return [grant(request, (3, 1), received_bytes=2 * min(4, len(daemon.of_kind(Offer))))]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(tree, key="k")), Staged)
        spans = [chunk.span for chunk in daemon.chunks]
        assert len(daemon.of_kind(Offer)) > 4
    assert sorted(spans)[:3] == [0, 1, 2]
    assert set(spans[3:]) == {3}, "bytes still arrived, and then only one span was missing"


def test_a_grant_with_another_token_has_everything_that_it_misses_sent(shm_dir: Path) -> None:
    tree = {"x": np.zeros(2 * 4096, np.uint8)}

    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        count = len(daemon.of_kind(Offer))
        return [staged(request)] if count == 3 else [grant(request, (0, 2), token=count)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(tree, key="k"), retry_s=0.3), Staged)
        sent = sorted((chunk.token, chunk.span) for chunk in daemon.chunks)
    assert sent == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_daemon_on_every_address_is_sent_data_where_the_client_dialled(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        return [grant(request, (0, 1))] if not daemon.chunks else [staged(request)]

    with FakeDaemon(shm_dir, answer, endpoint="tcp://127.0.0.1:*", data_endpoint="tcp://0.0.0.0:*") as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)
        assert len(daemon.chunks) == 1
