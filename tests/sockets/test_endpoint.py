"""Who holds an endpoint that cannot be bound; what else there is of endpoints is tested with daemons."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from forebay.shm import share
from forebay.sockets import Endpoint, control_frame_limit
from forebay.wire import (
    HeldError,
    Limits,
    Message,
    Peer,
    RefusalCode,
    Refused,
    Welcome,
    WorkerWelcome,
    decode_call_request,
    encode_message,
)

PEER = Peer(name="holder", pid=4711, host="there")
COMMON = {
    "version": 1,
    "software": "0",
    "epoch": "e",
    "peer": PEER,
    "data_endpoint": "tcp://d",
    "limits": Limits(),
}
WAIT_S = 20.0


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Welcome(**COMMON), "holder pid 4711 on there"),  # type: ignore[arg-type]
        (WorkerWelcome(**COMMON, mode="stage", is_fed=True, methods=()), "holder pid 4711 on there"),  # type: ignore[arg-type]
        (Refused(code=RefusalCode.VERSION, words="no"), "a process that does not answer as a Forebay daemon or"),
        (None, "a process that does not speak Forebay's protocol"),
    ],
    ids=["daemon", "worker", "another version", "garbage"],
)
def test_a_port_that_is_taken_is_held_by_whoever_answers_there(
    context: zmq.Context[zmq.Socket[bytes]], answer: Message | None, words: str
) -> None:
    with context.socket(zmq.ROUTER) as holder:
        address = f"tcp://127.0.0.1:{holder.bind_to_random_port('tcp://127.0.0.1')}"

        def say() -> None:
            routing, frame = holder.recv_multipart()
            decode_call_request(frame)
            holder.send_multipart([routing, b"hello?" if answer is None else encode_message(answer)])

        thread = threading.Thread(target=say)
        thread.start()
        with pytest.raises(HeldError) as caught:
            Endpoint(context, zmq.ROUTER, address, setting="worker_endpoint", peer=PEER, max_frame_bytes=1 << 20)
        thread.join(WAIT_S)
    assert f"worker_endpoint {address} is held by {words}" in str(caught.value)
    assert "set worker_endpoint to another address" in str(caught.value)


def test_a_peer_that_is_lost_with_answers_unsent_keeps_no_context_from_ending(shm_dir: Path) -> None:
    # Seen about once in a hundred times where the linger is set when the socket is closed, and not before.
    for _ in range(60):
        ours: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        theirs: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        address = f"ipc://{shm_dir}/control"
        endpoint = Endpoint(ours, zmq.ROUTER, address, setting="s", peer=PEER, max_frame_bytes=1 << 20)
        assert endpoint.socket.linger == 0
        callers = [theirs.socket(zmq.DEALER) for _ in range(3)]
        for caller in callers:
            caller.connect(address)
            caller.send(b"call")
        names = [endpoint.socket.recv_multipart()[0] for _ in callers]
        leave = threading.Thread(target=theirs.destroy, kwargs={"linger": 0})
        leave.start()
        for _ in range(20):
            for name in names:
                with contextlib.suppress(zmq.ZMQError):
                    endpoint.socket.send_multipart([name, bytes(20_000)], zmq.NOBLOCK)
        endpoint.close(linger_ms=100)
        ours.term()
        leave.join(WAIT_S)
        assert not leave.is_alive(), "the peers did not leave"


def test_answers_that_are_under_way_leave_before_the_context_ends(shm_dir: Path) -> None:
    ours: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    theirs: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{shm_dir}/control"
    endpoint = Endpoint(ours, zmq.ROUTER, address, setting="s", peer=PEER, max_frame_bytes=1 << 20)
    with theirs.socket(zmq.DEALER) as caller:
        caller.connect(address)
        caller.send(b"call")
        name, _ = endpoint.socket.recv_multipart()
        for _ in range(20):
            endpoint.socket.send_multipart([name, bytes(50_000)])
        endpoint.close(linger_ms=20_000)
        ours.term()
        for number in range(20):
            assert caller.poll(int(1000 * WAIT_S)), f"only {number} of 20 answers came"
            assert len(caller.recv()) == 50_000
    theirs.term()


def test_a_control_frame_has_room_for_more_than_the_manifest() -> None:
    assert control_frame_limit(1000) == 1000 + (64 << 10)


def test_a_socket_is_private_before_it_gets_its_mode_whatever_the_umask(
    shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look_and_share(path: Path, **options: Any) -> None:
        seen.append(stat.S_IMODE(path.stat().st_mode))
        share(path, **options)

    monkeypatch.setattr("forebay.sockets.endpoint.share", look_and_share)
    before = os.umask(0)
    try:
        address = f"ipc://{shm_dir}/control"
        endpoint = Endpoint(context, zmq.ROUTER, address, setting="s", peer=PEER, max_frame_bytes=1 << 20)
        assert os.umask(0) == 0, "and the umask is as before"
    finally:
        os.umask(before)
    assert [mode & 0o077 for mode in seen] == [0]
    assert stat.S_IMODE((shm_dir / "control").stat().st_mode) == 0o600
    endpoint.close(linger_ms=0)


def test_a_folder_that_another_thread_makes_while_a_socket_is_bound_can_be_entered(
    shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = zmq.Socket.bind

    def bind_beside_a_mkdir(socket: zmq.Socket[bytes], address: str) -> object:
        if address.startswith("ipc:"):
            (shm_dir / "folder").mkdir()
        return bind(socket, address)

    monkeypatch.setattr(zmq.Socket, "bind", bind_beside_a_mkdir)
    address = f"ipc://{shm_dir}/control"
    Endpoint(context, zmq.ROUTER, address, setting="s", peer=PEER, max_frame_bytes=1 << 20).close(linger_ms=0)
    assert stat.S_IMODE((shm_dir / "folder").stat().st_mode) == 0o700


def test_an_endpoint_that_cannot_watch_its_connections_leaves_nothing_behind(
    shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[zmq.Socket[bytes]] = []

    def refuse(socket: zmq.Socket[bytes], *_: object) -> None:
        bound.append(socket)
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr("forebay.sockets.endpoint.Connections", refuse)
    address = f"ipc://{shm_dir}/control"
    with pytest.raises(zmq.ZMQError):
        Endpoint(context, zmq.ROUTER, address, setting="s", peer=PEER, max_frame_bytes=1 << 20)
    assert [socket.closed for socket in bound] == [True]
    assert list(shm_dir.iterdir()) == [], "no lock either"
