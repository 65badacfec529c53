"""A pace: its decisions by a clock of the test's own, and what a sender makes of them on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from forebay.orchestrator_client import StagingClient
from forebay.orchestrator_client.chunk_sender import ChunkSender, StopSignal
from forebay.orchestrator_client.data_endpoint import Target
from forebay.orchestrator_client.pace import CATCH_UP_S, Pace, SteadyPace
from forebay.orchestrator_client.payload import Payload, WireBytes
from forebay.orchestrator_client.server_kind import DAEMON
from forebay.wire import (
    Abandon,
    ChunkHeader,
    ControlReply,
    ControlRequest,
    Granted,
    Offer,
    UsageError,
    chunk_checksum,
    default_registry,
    flatten,
)

from .fake_daemon import LIMITS, PATIENCE_S, FakeDaemon, grant

KB = 1000

# --- the decision ---


def test_bytes_may_leave_when_the_wire_would_have_carried_them() -> None:
    assert SteadyPace(KB).wait_s(500, now=7.0) == pytest.approx(0.5)


def test_bytes_wait_for_those_before_them() -> None:
    pace = SteadyPace(KB)
    assert [pace.wait_s(500, now=7.0) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])
    assert pace.wait_s(500, now=8.0) == pytest.approx(1.0)


@pytest.mark.parametrize("goes_on", [False, True])
def test_after_an_idle_time_no_burst_is_saved_up(goes_on: bool) -> None:
    pace = SteadyPace(KB)
    pace.wait_s(500, now=0.0)
    waits = [pace.wait_s(500, now=1000.0, goes_on=goes_on) for _ in range(2)]
    assert waits == pytest.approx([0.5, 1.0])


@given(late_s=st.lists(st.floats(0, CATCH_UP_S / 2), min_size=1, max_size=200))
def test_waking_late_makes_nothing_after_it_later(late_s: list[float]) -> None:
    pace = SteadyPace(KB)
    now = 0.0
    for number, late in enumerate(late_s):
        leaves_at = now + pace.wait_s(100, now, goes_on=number > 0)
        now = leaves_at + late
    assert leaves_at == pytest.approx(0.1 * len(late_s))


def test_what_begins_anew_makes_up_for_no_lateness() -> None:
    pace = SteadyPace(KB)
    pace.wait_s(100, now=0.0)
    assert pace.wait_s(100, now=0.1 + CATCH_UP_S / 2) == pytest.approx(0.1)


def test_a_longer_pause_in_the_middle_is_idle_time() -> None:
    pace = SteadyPace(KB)
    pace.wait_s(100, now=0.0)
    assert pace.wait_s(100, now=0.1 + 2 * CATCH_UP_S, goes_on=True) == pytest.approx(0.1)


def test_bytes_that_take_no_time_do_not_wait() -> None:
    assert SteadyPace(float("inf")).wait_s(1 << 40, now=3.0) == 0.0
    assert SteadyPace(KB).wait_s(0, now=3.0) == 0.0


def test_threads_that_share_a_wire_share_its_rate() -> None:
    pace = SteadyPace(KB)
    with ThreadPoolExecutor(4) as threads:
        waits = list(threads.map(lambda _: pace.wait_s(10, now=0.0), range(400)))
    assert sorted(waits) == pytest.approx([0.01 * number for number in range(1, 401)])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_pace_without_a_rate_is_an_error(rate: float) -> None:
    with pytest.raises(UsageError, match=r"a pace needs a rate.*more than 0 bytes a second"):
        SteadyPace(rate)


# --- a sender that keeps it ---


class WatchedPace(Pace):
    """A wire that takes a time for each chunk, and tells what it is asked."""

    def __init__(self, chunk_s: float) -> None:
        super().__init__()
        self.asked: list[tuple[int, bool]] = []
        self.was_asked = threading.Event()
        self._chunk_s = chunk_s

    def wait_s(self, nbytes: int, now: float, *, goes_on: bool = False) -> float:
        self.asked.append((nbytes, goes_on))
        self.was_asked.set()
        return super().wait_s(nbytes, now, goes_on=goes_on)

    def _carry_s(self, nbytes: int) -> float:  # noqa: ARG002 - as long for any chunk
        return self._chunk_s


TREE: dict[str, Any] = {"large": np.arange(5000, dtype=np.int32), "small": np.arange(7, dtype=np.int8)}


def payload_of(tree: Any) -> Payload:
    flat = flatten(tree, registry=default_registry, limits=LIMITS)
    return Payload.of(flat, LIMITS)


def grant_of(*missing: tuple[int, int]) -> Granted:
    offer = Offer(id=1, queue="train", key="k", attempt="a", manifest=b"", wait_s=0.0)
    return grant(offer, *missing)


@contextlib.contextmanager
def sender_and_receiver(folder: Path, pace: Pace) -> Iterator[tuple[ChunkSender, zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.LINGER, 0)
    receiver = context.socket(zmq.PULL)
    receiver.rcvtimeo = int(1000 * PATIENCE_S)
    receiver.bind(f"ipc://{folder}/data")
    sender = ChunkSender(context, Target(f"ipc://{folder}/data"), DAEMON, send_chunks=8, pace=pace)
    try:
        yield sender, receiver
    finally:
        sender.close()
        context.destroy(linger=0)


@contextlib.contextmanager
def sending(
    sender: ChunkSender, payload: Payload, granted: Granted
) -> Iterator[tuple[threading.Thread, StopSignal]]:
    stop = StopSignal()
    thread = threading.Thread(target=sender.send, args=(payload, granted, stop, WireBytes(payload)))
    thread.start()
    try:
        yield thread, stop
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"the sender did not stop within {PATIENCE_S} s"
        stop.close()


def test_a_paced_sender_sends_the_same_chunks_in_the_same_order(shm_dir: Path) -> None:
    payload, pace = payload_of(TREE), WatchedPace(0.001)
    spans = payload.manifest.layout(LIMITS.chunk_bytes).spans
    with (
        sender_and_receiver(shm_dir, pace) as (sender, receiver),
        sending(sender, payload, grant_of((0, len(spans)))) as (thread, _),
    ):
        chunks = [receiver.recv_multipart() for _ in spans]
        thread.join(PATIENCE_S)
    headers = [ChunkHeader.unpack(header) for header, _ in chunks]
    assert [header.span for header in headers] == list(range(len(spans)))
    for header, (_, data) in zip(headers, chunks, strict=True):
        assert chunk_checksum(data, header.offset) == header.checksum
    assert b"".join(data for _, data in chunks[:-1]) == TREE["large"].tobytes()
    assert chunks[-1][1] == TREE["small"].tobytes()
    assert pace.asked == [(span.length, number > 0) for number, span in enumerate(spans)]


def test_a_second_sending_goes_on_with_nothing(shm_dir: Path) -> None:
    payload, pace = payload_of(TREE), WatchedPace(0.0)
    with sender_and_receiver(shm_dir, pace) as (sender, receiver):
        for _ in range(2):
            with sending(sender, payload, grant_of((3, 2))) as (thread, _):
                thread.join(PATIENCE_S)
        spans = [ChunkHeader.unpack(receiver.recv_multipart()[0]).span for _ in range(4)]
    assert spans == [3, 4, 3, 4]
    assert [goes_on for _, goes_on in pace.asked] == [False, True, False, True]


def test_a_stop_ends_a_long_wait_and_nothing_is_sent(shm_dir: Path) -> None:
    payload, pace = payload_of(TREE), WatchedPace(float("inf"))
    with sender_and_receiver(shm_dir, pace) as (sender, receiver):
        with sending(sender, payload, grant_of((0, 2))) as (thread, stop):
            assert pace.was_asked.wait(PATIENCE_S)
            assert thread.is_alive()
            stop.set()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert len(pace.asked) == 1
        with pytest.raises(zmq.Again):
            receiver.recv_multipart(zmq.NOBLOCK)


def test_a_moment_that_has_come_is_not_waited_for() -> None:
    stop = StopSignal()
    try:
        assert not stop.wait_until(0.0)
        stop.set()
        assert stop.wait_until(float("inf"))
    finally:
        stop.close()


# --- a client that keeps it ---


def test_a_paced_call_that_is_cancelled_returns_and_abandons(shm_dir: Path) -> None:
    pace = WatchedPace(float("inf"))

    def answer(request: ControlRequest) -> Iterable[ControlReply] | None:
        return [grant(request, (0, 2))] if isinstance(request, Offer) else None

    async def stage() -> None:
        async with StagingClient(daemon.endpoint, timeout_s=PATIENCE_S, pace=pace) as client:
            call = asyncio.create_task(client.stage(TREE, key="k"))
            assert await asyncio.to_thread(pace.was_asked.wait, PATIENCE_S)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    with FakeDaemon(shm_dir, answer) as daemon:
        asyncio.run(stage())
        daemon.wait_for(Abandon)
        assert daemon.chunks == []
