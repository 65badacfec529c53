"""The ids that a ROUTER gives to its peers. Of one that is taken libzmq dies; that is tried in another process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import zmq

import forebay
from forebay.sockets import Endpoint
from forebay.wire import Peer

WAIT_MS = 20_000
WAIT_S = 60.0
ME = Peer(name="test", pid=os.getpid(), host="here")


def next_id(address: str) -> bytes:
    """Returns what a ROUTER that was made just now calls a peer that chooses no id.

    The C library's `rand` stands where it stands in each new process.
    """
    ctypes.CDLL(None).srand(1)
    with zmq.Context() as context:
        endpoint = Endpoint(
            context, zmq.ROUTER, address, setting="control_endpoint", peer=ME, max_frame_bytes=1 << 10
        )
        try:
            with context.socket(zmq.DEALER) as peer:
                peer.linger = 0
                peer.connect(endpoint.address)
                peer.send(b"whoever")
                assert endpoint.socket.poll(WAIT_MS)
                routing, _ = endpoint.socket.recv_multipart()
                return routing
        finally:
            endpoint.close(linger_ms=0)


def test_nobody_can_foresee_the_routing_id_of_the_next_peer() -> None:
    ids = {next_id("tcp://127.0.0.1:*") for _ in range(3)}
    assert all(routing[0] == 0 and len(routing) == 5 for routing in ids)
    assert len(ids) == 3


TAKES_THE_IDS = """
import ctypes, os, zmq
from forebay.sockets import Endpoint
from forebay.wire import Peer

libc = ctypes.CDLL(None)
context = zmq.Context()
endpoint = Endpoint(
    context, zmq.ROUTER, "tcp://127.0.0.1:*", setting="control_endpoint", peer=Peer(name="", pid=0, host=""),
    max_frame_bytes=1 << 10,
)
libc.srand(1)
low, high = libc.rand(), libc.rand()
for taken in (b"\\0" + ((high << 31 | low) & 0xFFFFFFFF).to_bytes(4, "big"), b""):
    peer = context.socket(zmq.DEALER)
    if taken:
        peer.routing_id = taken
    peer.connect(endpoint.address)
    peer.send(b"whoever")
    assert endpoint.socket.poll(20_000)
    endpoint.socket.recv_multipart()
os._exit(0)
"""


def test_a_peer_that_takes_the_id_that_libzmq_gives_first_ends_nobody(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(forebay.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", TAKES_THE_IDS],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
