"""The private memory of a real daemon under peers that send without end and read nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from forebay.benchmarks.process_cost import ProcessCost
from forebay.daemon import LocalDaemon, local_daemon
from forebay.orchestrator_client import Staged, StagingClient
from forebay.wire import (
    MAX_FRAMES,
    MIB,
    PROTOCOL_VERSION,
    Advance,
    Advanced,
    Await,
    ControlReply,
    Events,
    GetEvents,
    GetStatus,
    Hello,
    MicroBatchState,
    Peek,
    Peer,
    RefusalCode,
    Refused,
    RefusedError,
    Status,
    decode_control_reply,
    encode_message,
)

PATIENCE_S = 60.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
"""How a DEALER begins. Source: ZMTP 3.0, rfc.zeromq.org/spec/23."""


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def daemon(log_file: Path) -> Iterator[LocalDaemon]:
    with local_daemon(slots=2, slot_initial_bytes=MIB, log_file=log_file) as daemon:
        yield daemon


@contextlib.contextmanager
def connected(address: str, *, is_deaf: bool = False) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        if is_deaf:
            dealer.rcvhwm = 1
        dealer.rcvtimeo = dealer.sndtimeo = int(PATIENCE_S * 1000)
        dealer.connect(address)
        yield dealer


def assert_serves(daemon: LocalDaemon) -> None:
    async def main() -> None:
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            assert isinstance(await client.stage({"x": np.ones(9)}, key="good", queue="good"), Staged)
            assert await client.reset(queue="good") == 1

    asyncio.run(main())
    assert daemon.process.poll() is None


def counters(daemon: LocalDaemon) -> Counter[str]:
    async def main() -> Counter[str]:
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            return Counter((await client.status()).counters)

    return asyncio.run(main())


def test_frames_beyond_what_a_message_may_have_are_refused_once_and_cost_no_memory(daemon: LocalDaemon) -> None:
    too_many = 200_000
    cost = ProcessCost(daemon.pid)
    with connected(daemon.control_endpoint) as dealer, cost:
        dealer.send_multipart([b"x"] * (MAX_FRAMES + too_many))
        refusals: list[Refused] = []
        while not refusals or f"{too_many} frames" not in refusals[-1].words:
            refusals += [
                reply
                for frame in dealer.recv_multipart()
                if isinstance(reply := decode_control_reply(frame), Refused)
            ]
        assert {refusal.code for refusal in refusals} == {RefusalCode.BAD_REQUEST}
        assert len(refusals) == MAX_FRAMES + 1
        assert_serves(daemon)
    assert cost.peak_mib - cost.first_mib < 100


def said_hello(dealer: zmq.Socket[bytes]) -> None:
    peer = Peer(name="deaf", pid=1, host="here")
    dealer.send(encode_message(Hello(id=1, version=PROTOCOL_VERSION, peer=peer)))


def test_a_peer_that_reads_nothing_costs_bounded_memory_and_slows_nobody(daemon: LocalDaemon) -> None:
    cost = ProcessCost(daemon.pid)
    with connected(daemon.control_endpoint, is_deaf=True) as dealer, cost:
        said_hello(dealer)
        for number in range(20_000):
            dealer.send(encode_message(GetStatus(id=number)))
            if number % 5000 == 0:
                assert_serves(daemon)
    assert_serves(daemon)
    assert cost.peak_mib - cost.first_mib < 64


def test_a_peer_that_reads_nothing_costs_bounded_memory_however_many_answers_a_message_gets(
    daemon: LocalDaemon,
) -> None:
    name = "\x01" * 60  # spelled out in the refusal
    request = encode_message(Await(id=1, queue=name, key=name, until=MicroBatchState.READY))
    cost = ProcessCost(daemon.pid)
    with connected(daemon.control_endpoint, is_deaf=True) as dealer, cost:
        said_hello(dealer)
        count = 200
        for _ in range(count):
            dealer.send_multipart([request] * MAX_FRAMES)
        while counters(daemon)["refused_unknown_key"] < count * MAX_FRAMES:
            assert daemon.process.poll() is None
    assert cost.peak_mib - cost.first_mib < 64


def test_a_message_of_requests_with_long_answers_costs_no_memory_and_few_of_them_are_answered(
    daemon: LocalDaemon,
) -> None:
    cost = ProcessCost(daemon.pid)
    with connected(daemon.control_endpoint) as dealer, cost:
        said_hello(dealer)
        requests = [Advance(id=2, queue=f"{number}{'q' * 240}", policy_version=1) for number in range(1000)]
        dealer.send_multipart([encode_message(request) for request in requests])
        heard: list[ControlReply] = []
        while len(heard) < 1 + len(requests):
            heard += map(decode_control_reply, dealer.recv_multipart())
        last = encode_message(Advance(id=4, queue=requests[0].queue, policy_version=1))
        dealer.send_multipart([*[encode_message(GetStatus(id=3))] * 1000, last])
        statuses = []
        while not isinstance(answer := decode_control_reply(dealer.recv()), Advanced):
            assert isinstance(answer, Status)
            statuses.append(answer)
        assert len(statuses[0].queues) == 1000
        assert len(statuses) < 10
        assert_serves(daemon)
    assert cost.peak_mib - cost.first_mib < 64


def test_who_asks_a_thousand_times_at_once_what_happened_has_it_looked_up_a_few_times(daemon: LocalDaemon) -> None:
    with connected(daemon.control_endpoint) as dealer:
        said_hello(dealer)
        dealer.recv_multipart()
        question = encode_message(GetEvents(id=3, key="nobody has"))
        last = encode_message(Advance(id=4, queue="q", policy_version=1))
        dealer.send_multipart([*[question] * 1000, last])
        answers = []
        while not isinstance(answer := decode_control_reply(dealer.recv()), Advanced):
            assert isinstance(answer, Events)
            answers.append(answer)
        assert 0 < len(answers) < 10
        dealer.send(question)
        assert isinstance(decode_control_reply(dealer.recv()), Events)
    assert_serves(daemon)


def test_peers_that_look_at_much_and_read_nothing_end_no_daemon(log_file: Path) -> None:
    tree = {"x": np.ones(9), "words": "w" * (900 << 10)}  # a static value: it travels in the manifest
    with local_daemon(slots=2, slot_initial_bytes=MIB, log_file=log_file, max_private_bytes=400 * MIB) as daemon:

        async def stage() -> None:
            async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
                assert isinstance(await client.stage(tree, key="k", queue="q"), Staged)

        asyncio.run(stage())
        with contextlib.ExitStack() as stack:
            dealers = [stack.enter_context(connected(daemon.control_endpoint, is_deaf=True)) for _ in range(6)]
            for dealer in dealers:
                said_hello(dealer)
            request = encode_message(Peek(id=2, queue="q", key="k"))
            while "code=too_many" not in log_file.read_text():
                for dealer in dealers:
                    dealer.send(request)
                assert daemon.process.poll() is None, log_file.read_text()
            assert_stages(daemon)
        deadline = time.monotonic() + PATIENCE_S
        while not is_looked_at(daemon):
            assert time.monotonic() < deadline, "memory never came back"


def assert_stages(daemon: LocalDaemon) -> None:
    async def main() -> None:
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            assert isinstance(await client.stage({"x": np.ones(9)}, key="good", queue="good"), Staged)

    asyncio.run(main())


def is_looked_at(daemon: LocalDaemon) -> bool:
    try:
        counters(daemon)
    except RefusedError:
        return False
    return True


def test_refusals_without_end_fill_no_log_and_are_counted_each(daemon: LocalDaemon, log_file: Path) -> None:
    count, at_once = 3000, 100
    with connected(daemon.control_endpoint) as dealer:
        for _ in range(count // at_once):
            for _ in range(at_once):
                dealer.send(b"\x81\xa4type\xa7\x1b[31mred")
            # In between: of answers that nobody reads some are withheld.
            heard = 0
            while heard < at_once:
                heard += len(dealer.recv_multipart())

    assert counters(daemon)["refused_bad_request"] == count
    log = log_file.read_text()
    assert log.count("refuse code=bad_request") < 200
    assert "\x1b" not in log


def test_a_message_without_end_ends_the_daemon_in_order_and_keeps_its_pool(log_file: Path, shm_dir: Path) -> None:
    settings = {"slots": 2, "slot_initial_bytes": MIB, "pool": str(shm_dir / "pool")}
    with local_daemon(log_file=log_file, max_private_bytes=150 * MIB, **settings) as daemon:  # type: ignore[arg-type]
        assert_serves_and_leaves(daemon)
        stop = threading.Event()

        def send_without_end() -> None:
            # By hand: ZeroMQ sends nothing of a message that is not complete.
            with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(OSError):
                raw.connect(daemon.control_endpoint.removeprefix("ipc://"))
                shake_hands(raw)
                while not stop.is_set():
                    raw.sendall(b"\x03" + (MIB // 4).to_bytes(8, "big") + bytes(MIB // 4))

        thread = threading.Thread(target=send_without_end)
        thread.start()
        try:
            daemon.process.wait(PATIENCE_S)
        finally:
            stop.set()
            thread.join()
    assert daemon.process.returncode == 1
    assert "max_private_bytes" in log_file.read_text()
    with local_daemon(**settings) as after:  # type: ignore[arg-type]

        async def ready() -> tuple[str, ...]:
            async with StagingClient(after.control_endpoint, timeout_s=PATIENCE_S) as client:
                return (await client.status()).queues[0].ready

        assert asyncio.run(ready()) == ("kept",)


def shake_hands(raw: socket.socket) -> None:
    """Begins as a DEALER, and waits for the other side's READY: who sends before that is thrown out."""
    raw.sendall(GREETING + READY)
    heard = b""
    while len(heard) < len(GREETING) + 2 or len(heard) < len(GREETING) + 2 + heard[len(GREETING) + 1]:
        heard += raw.recv(4096)


def assert_serves_and_leaves(daemon: LocalDaemon) -> None:
    async def main() -> None:
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            assert isinstance(await client.stage({"x": np.ones(9)}, key="kept", queue="q"), Staged)

    asyncio.run(main())
