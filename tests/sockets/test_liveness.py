"""Peers that vanish: the process that they were connected to lives on, and gives them up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

import forebay
from forebay.sockets import Endpoint, ping
from forebay.wire import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, Peer

PEER = Peer(name="holder", pid=4711, host="there")
WAIT_MS = 20_000

OVERFILL_AND_VANISH = """
import sys, time, zmq
from forebay.sockets import Endpoint, liveness, ping
from forebay.wire import Peer

liveness.HEARTBEAT_MS = 50
here, there = zmq.Context(), zmq.Context()
peer = Peer(name="holder", pid=1, host="here")
endpoint = Endpoint(
    here, zmq.PULL, sys.argv[1], setting="data_endpoint", peer=peer, max_frame_bytes=1 << 20, receive_high_water=1
)
if sys.argv[2] == "asks itself":
    endpoint.close(linger_ms=0)
    endpoint.socket = here.socket(zmq.PULL)
    endpoint.socket.rcvhwm, endpoint.socket.heartbeat_ivl, endpoint.socket.heartbeat_timeout = 1, 50, 30_000
    endpoint.socket.bind(sys.argv[1])
push = there.socket(zmq.PUSH)
ping(push)
push.sndhwm, push.linger, push.sndtimeo = 1, 0, 300
push.connect(sys.argv[1])
try:
    while True:
        push.send(bytes(100_000))
except zmq.Again:
    there.destroy(linger=0)
time.sleep(0.5)  # many heartbeats, on a connection that broke with more to be read than the socket takes
endpoint.socket.rcvtimeo = 300
try:
    while True:
        endpoint.socket.recv()
except zmq.Again:
    print("lives")
"""


@pytest.mark.parametrize(("who", "end"), [("answers", (0, "lives\n")), ("asks itself", (-6, ""))])
def test_a_peer_that_vanished_while_more_was_to_be_read_than_fits_ends_no_process_that_only_answers(
    shm_dir: Path, who: str, end: tuple[int, str]
) -> None:
    if who == "asks itself" and zmq.zmq_version_info() != (4, 3, 5):
        pytest.skip("of 4.3.5 it is known")
    environment = os.environ | {"PYTHONPATH": str(Path(forebay.__file__).parents[1])}
    command = [sys.executable, "-c", OVERFILL_AND_VANISH, f"ipc://{shm_dir}/data.sock", who]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == end, done.stderr


def test_a_peer_that_stops_pinging_is_given_up(shm_dir: Path) -> None:
    here: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{shm_dir}/control.sock"
    endpoint = Endpoint(here, zmq.ROUTER, address, setting="control_endpoint", peer=PEER, max_frame_bytes=1000)
    gone = endpoint.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    code = (
        "import sys, zmq; from forebay.sockets import liveness, ping\n"
        "liveness.HEARTBEAT_MS, liveness.HEARTBEAT_TIMEOUT_MS = 50, 200\n"
        "socket = zmq.Context().socket(zmq.DEALER); ping(socket); socket.connect(sys.argv[1])\n"
        "socket.send(b'here'); sys.stdin.read()"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(forebay.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", code, address], stdin=subprocess.PIPE, env=environment) as peer:
        try:
            assert endpoint.socket.poll(WAIT_MS), "nobody said that it is there"
            assert not gone.poll(500), "a peer that pings is not given up"
            os.kill(peer.pid, signal.SIGSTOP)
            assert gone.poll(WAIT_MS), "a peer that was stopped is still waited for"
            recv_monitor_message(gone)
        finally:
            peer.kill()
    endpoint.socket.disable_monitor()
    gone.close()
    endpoint.close(linger_ms=0)
    here.term()


def test_a_bound_socket_asks_nobody_and_has_the_kernel_ask(shm_dir: Path) -> None:
    here: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{shm_dir}/control.sock"
    endpoint = Endpoint(here, zmq.PULL, address, setting="data_endpoint", peer=PEER, max_frame_bytes=1000)
    assert (endpoint.socket.heartbeat_ivl, endpoint.socket.tcp_keepalive) == (0, 1)
    endpoint.close(linger_ms=0)
    with here.socket(zmq.DEALER) as socket:
        ping(socket)
        assert socket.heartbeat_ivl == HEARTBEAT_MS
        assert socket.heartbeat_ttl == HEARTBEAT_TIMEOUT_MS
    here.term()
