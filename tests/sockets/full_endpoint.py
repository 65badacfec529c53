"""An endpoint that has as many connections as it may have, for tests of what its next client hears."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import zmq

from forebay.sockets import Endpoint
from forebay.wire import Peer

_PATIENCE_MS = 20_000


@contextlib.contextmanager
def full_endpoint(address: str) -> Iterator[Endpoint]:
    """Binds an endpoint that may have one connection, and dials it until it takes no more."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = Peer(name="full", pid=os.getpid(), host="here")
    endpoint = Endpoint(
        context, zmq.ROUTER, address, setting="s", peer=peer, max_frame_bytes=1000, max_connections=1
    )
    with contextlib.ExitStack() as stack:
        stack.callback(context.term)
        stack.callback(endpoint.close, linger_ms=0)
        for _ in range(2):
            stack.enter_context(_dialled(endpoint.address))
        while not endpoint.connections.refused_count:
            assert endpoint.connections.monitor.poll(_PATIENCE_MS), "nobody came"
            endpoint.connections.attend()
        yield endpoint


def _dialled(address: str) -> socket.socket:
    if address.startswith("ipc://"):
        dialled = socket.socket(socket.AF_UNIX)
        dialled.connect(address.removeprefix("ipc://"))
        return dialled
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)))
