"""A real daemon that is sent garbage on every socket: it counts, says so where it can, and serves on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from forebay.daemon import LocalDaemon, local_daemon
from forebay.orchestrator_client import Staged, StagingClient
from forebay.wire import (
    PROTOCOL_VERSION,
    ChunkHeader,
    FindPool,
    Granted,
    Hello,
    Offer,
    Peer,
    PoolFound,
    RefusalCode,
    Refused,
    Status,
    Welcome,
    chunk_checksum,
    decode_control_reply,
    decode_trainer_reply,
    default_registry,
    describe,
    encode_message,
    flatten,
)

PATIENCE_S = 60.0
CHUNK_BYTES = 4096
DATA = np.random.default_rng(0).integers(0, 256, 2 * CHUNK_BYTES, np.uint8)


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalDaemon]:
    with local_daemon(slots=2, slot_initial_bytes=64 << 10, chunk_bytes=CHUNK_BYTES, fill_lease_s=3600) as daemon:
        yield daemon


Connect = Callable[[int, str], zmq.Socket[bytes]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())

        def connect(kind: int, endpoint: str) -> zmq.Socket[bytes]:
            socket = stack.enter_context(context.socket(kind))
            socket.linger = 0
            socket.rcvtimeo = socket.sndtimeo = int(PATIENCE_S * 1000)
            socket.connect(endpoint)
            return socket

        yield connect


def ask(daemon: LocalDaemon, what: Callable[[StagingClient], Any]) -> Any:
    async def main() -> Any:
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            return await what(client)

    return asyncio.run(main())


def wait_for_count(daemon: LocalDaemon, counter: str, count: int) -> None:
    async def wait(client: StagingClient) -> None:
        deadline = time.monotonic() + PATIENCE_S
        status: Status | None = None
        while time.monotonic() < deadline:
            status = await client.status()
            if status.counters.get(counter, 0) >= count:
                assert status.counters[counter] == count
                return
        raise AssertionError(f"waited {PATIENCE_S} s for {count} {counter}; {status}")

    ask(daemon, wait)


def count(daemon: LocalDaemon, counter: str) -> int:
    status: Status = ask(daemon, lambda client: client.status())
    return status.counters.get(counter, 0)


def assert_serves(daemon: LocalDaemon) -> None:
    async def stage_and_reset(client: StagingClient) -> None:
        assert isinstance(await client.stage({"x": DATA}, key="good", queue="good"), Staged)
        assert await client.reset(queue="good") == 1

    ask(daemon, stage_and_reset)
    assert daemon.process.poll() is None


# --- the data socket ---


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"x" * 47, b"y" * 100],
        [b"x" * 48, b"y" * 100],
        [b"x" * 49],
        [b"FBC1" + b"\0" * 44],
        [b"FBC1" + b"\xff" * 44],
        [b"x"] * 20,
        [b"", b"", b""],
    ],
)
def test_chunks_that_are_none_are_counted(daemon: LocalDaemon, connect: Connect, frames: list[bytes]) -> None:
    before = count(daemon, "chunk_malformed") + count(daemon, "chunk_not_granted")
    push = connect(zmq.PUSH, daemon.ready.data_endpoint)
    push.send_multipart(frames)
    push.send_multipart([b"and another"])
    wait_for_sum(daemon, before + 2)
    assert_serves(daemon)


def wait_for_sum(daemon: LocalDaemon, total: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := count(daemon, "chunk_malformed") + count(daemon, "chunk_not_granted")) < total:
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {total} bad chunks; there are {found}"
    assert found == total


@pytest.fixture
def grant(daemon: LocalDaemon, connect: Connect) -> Iterator[Granted]:
    """The grant of a micro-batch of two chunks, for which nothing has been sent."""
    control = connect(zmq.DEALER, daemon.control_endpoint)
    peer = Peer(name="broken sender", pid=os.getpid(), host="here")
    control.send(encode_message(Hello(id=1, version=PROTOCOL_VERSION, peer=peer)))
    welcome = decode_control_reply(control.recv())
    assert isinstance(welcome, Welcome)
    flat = flatten({"x": DATA}, registry=default_registry, limits=welcome.limits)
    manifest = describe(flat, welcome.limits).encode(welcome.limits)
    control.send(
        encode_message(Offer(id=2, queue="bad", key="k", attempt=os.urandom(8).hex(), manifest=manifest, wait_s=0))
    )
    granted = decode_control_reply(control.recv())
    assert isinstance(granted, Granted)
    yield granted
    ask(daemon, lambda client: client.reset(queue="bad"))


def header_of(grant: Granted, span: int) -> ChunkHeader:
    offset = span * CHUNK_BYTES
    return ChunkHeader(
        slot=grant.slot,
        span=span,
        length=CHUNK_BYTES,
        generation=grant.generation,
        token=grant.token,
        offset=offset,
        checksum=chunk_checksum(body_of(span), offset),
    )


def body_of(span: int) -> bytes:
    return DATA[span * CHUNK_BYTES : (span + 1) * CHUNK_BYTES].tobytes()


@pytest.mark.parametrize(
    ("bodies", "checksum_change", "counter"),
    [
        ([], 0, "chunk_malformed"),
        ([body_of(0)[:-1]], 0, "chunk_wrong_length"),
        ([b""], 0, "chunk_wrong_length"),
        ([body_of(0), b"more"], 0, "chunk_wrong_length"),
        ([body_of(0)], 1, "chunk_wrong_checksum"),
        ([body_of(1)], 0, "chunk_wrong_checksum"),
        ([bytes(CHUNK_BYTES)], 0, "chunk_wrong_checksum"),
    ],
)
def test_a_chunk_whose_bytes_are_wrong_is_counted_and_still_missing(
    daemon: LocalDaemon,
    connect: Connect,
    grant: Granted,
    bodies: list[bytes],
    checksum_change: int,
    counter: str,
) -> None:
    before = count(daemon, counter)
    header = header_of(grant, 0)
    bad = dataclasses.replace(header, checksum=header.checksum ^ checksum_change)
    push = connect(zmq.PUSH, daemon.ready.data_endpoint)
    push.send_multipart([bad.pack(), *bodies])
    wait_for_count(daemon, counter, before + 1)
    status: Status = ask(daemon, lambda client: client.status())
    assert [(slot.state, slot.received_bytes) for slot in status.slots if slot.key == "k"] == [("FILLING", 0)]
    published = status.counters.get("published", 0)
    for span in (0, 1):
        push.send_multipart([header_of(grant, span).pack(), body_of(span)])
    wait_for_count(daemon, "published", published + 1)
    assert_serves(daemon)


def test_a_chunk_larger_than_may_be_cuts_only_its_own_connection(daemon: LocalDaemon, connect: Connect) -> None:
    push = connect(zmq.PUSH, daemon.ready.data_endpoint)
    push.send_multipart([b"x" * 48, bytes(CHUNK_BYTES + 1)])
    assert_serves(daemon)


# --- the control and trainer sockets ---


GARBAGE = [
    [b""],
    [b"\xc1"],
    [b"\xff" * 1000],
    [b"\x81\xa4type\xa5offer"],
    [b"\x81\xa4type\xa7unknown"],
    [b"\x92" * 5000],
    [encode_message(PoolFound(version=1, software="", epoch="", pool=""))],
    [encode_message(FindPool(version=1)) + b"x"],
    [b"two", b"frames"],
    [b"x"] * 50,
]


@pytest.mark.parametrize("frames", GARBAGE)
@pytest.mark.parametrize("socket", ["control", "trainer"])
def test_a_message_that_is_none_is_refused_with_the_reason(
    daemon: LocalDaemon, connect: Connect, socket: str, frames: list[bytes]
) -> None:
    dealer = connect(zmq.DEALER, getattr(daemon, f"{socket}_endpoint"))
    dealer.send_multipart(frames)
    decode = decode_control_reply if socket == "control" else decode_trainer_reply
    refused = decode(dealer.recv())
    assert isinstance(refused, Refused)
    assert (refused.id, refused.code) == (0, RefusalCode.BAD_REQUEST)
    assert refused.words
    assert_serves(daemon)


def test_a_message_larger_than_may_be_cuts_only_its_own_connection(daemon: LocalDaemon, connect: Connect) -> None:
    dealer = connect(zmq.DEALER, daemon.control_endpoint)
    dealer.send(bytes(2 << 20))
    assert_serves(daemon)


def test_a_peer_that_reads_no_answers_stops_nobody(daemon: LocalDaemon, connect: Connect) -> None:
    deaf = connect(zmq.DEALER, daemon.control_endpoint)
    for _ in range(20_000):
        deaf.send(b"\xc1")
    assert_serves(daemon)
