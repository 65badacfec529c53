"""Whose handshake failed, and why, with real sockets; and what is told where that cannot be known."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from forebay.sockets import Endpoint, Gate, load_client_keys, load_server_keys
from forebay.sockets.failed_handshakes import FailedHandshakes
from forebay.wire import Faults, Peer

from .key_files import KeyFiles

PATIENCE_S = 20.0
PEER = Peer(name="test", pid=os.getpid(), host="here")


class Door:
    """An endpoint with keys that knows alice alone, and those who come to it."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.files = KeyFiles(folder, "alice", "bob")
        self.files.authorise(self.files.entry("alice", "stage"))
        keys = load_server_keys(**self.files.server())
        assert keys is not None
        self._undo = undo
        inside = self._context()
        self.faults = Faults()
        undo.callback(Gate(inside, keys, self.faults).close)
        self.endpoint = Endpoint(
            inside,
            zmq.ROUTER,
            "tcp://127.0.0.1:*",
            setting="control_endpoint",
            peer=PEER,
            max_frame_bytes=1000,
            keys=keys,
            faults=self.faults,
        )
        undo.callback(self.endpoint.close, linger_ms=0)
        self._outside = self._context()

    def _context(self) -> zmq.Context[zmq.Socket[bytes]]:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._undo.callback(context.term)
        return context

    def knock(self, name: str = "", *, server: str = "server") -> None:
        """Has a client dial once."""
        client = self._outside.socket(zmq.DEALER)
        self._undo.callback(client.close, linger=0)
        client.reconnect_ivl = -1
        if name:
            keys = load_client_keys(**self.files.client(name, server=server), server_setting="server_key_file")
            assert keys is not None
            keys.use(client, self.endpoint.address)
        client.connect(self.endpoint.address)

    def attend_until_counted(self, number: int) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while self.faults.counts().total() < number:
            left_ms = int((give_up_at - time.monotonic()) * 1000)
            assert left_ms > 0, self.faults.counts()
            self.endpoint.connections.monitor.poll(left_ms)
            self.endpoint.connections.attend()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with ExitStack() as undo:
        yield Door(tmp_path, undo)


@pytest.mark.parametrize(
    ("name", "server", "reasons"),
    # Without keys, both sides see that it cannot be, and either may be the first to hang up.
    [("", "", {"hung_up", "no_keys"}), ("alice", "bob", {"wrong_server_key"})],
    ids=["no keys", "another server's key"],
)
def test_a_client_without_keys_or_with_another_servers_is_told_once_and_counted_by_the_reason(
    door: Door, caplog: pytest.LogCaptureFixture, name: str, server: str, reasons: set[str]
) -> None:
    door.knock(name, server=server)
    door.attend_until_counted(1)
    [counted] = door.faults.counts()
    reason = counted.removeprefix("handshake_failed_")
    assert reason in reasons
    [told] = caplog.records
    # Unknown where the connection was over before this side looked.
    words = rf"handshake_failed endpoint=control_endpoint peer=(127\.0\.0\.1:\d+|unknown) reason={reason}: it "
    assert re.match(words, told.getMessage())
    assert told.levelname == "WARNING"


def test_who_only_looks_at_the_port_is_told_by_its_very_address(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = door.endpoint.address.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as caller:
        name = "{}:{}".format(*caller.getsockname())
        while not len(door.endpoint.connections):
            door.endpoint.connections.monitor.poll(int(PATIENCE_S * 1000))
            door.endpoint.connections.attend()
    door.attend_until_counted(1)
    assert door.faults.counts() == {"handshake_failed_hung_up": 1}
    assert f"handshake_failed endpoint=control_endpoint peer={name} reason=hung_up" in caplog.text


def test_an_unknown_key_is_told_with_its_host_by_the_gate_alone_and_counted(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.knock("bob")
    door.attend_until_counted(1)
    assert door.faults.counts() == {"handshake_failed_not_authorised": 1}
    [told] = caplog.messages
    assert told == f"stranger_turned_away key={door.files.public('bob')} peer=127.0.0.1"
    [last] = door.faults.last().values()
    assert last.by == f"127.0.0.1 with key {door.files.public('bob')}"


def test_of_any_number_of_failed_handshakes_few_are_told_and_all_are_counted(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        door.knock("alice", server="bob")
    door.attend_until_counted(30)
    assert door.faults.counts() == {"handshake_failed_wrong_server_key": 30}
    assert len(caplog.messages) == 20


# --- with events made here ---


def hearing(threads: int, undo: ExitStack) -> tuple[FailedHandshakes, Faults]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(threads)
    undo.callback(context.term)
    bound = context.socket(zmq.ROUTER)
    undo.callback(bound.close)
    faults = Faults()
    return FailedHandshakes(bound, "s", faults, lambda descriptor: f"peer-{descriptor}"), faults


def test_with_several_threads_a_failure_is_counted_at_once_and_its_peer_stays_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    with ExitStack() as undo:
        handshakes, faults = hearing(2, undo)
        handshakes.hear(zmq.EVENT_ACCEPTED, 7)
        assert handshakes.hear(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 104)
        assert faults.counts() == {"handshake_failed_hung_up": 1}
        handshakes.hear(zmq.EVENT_DISCONNECTED, 7)
    [told] = caplog.messages
    assert told.startswith("handshake_failed endpoint=s peer=unknown reason=hung_up")


def test_a_connection_that_this_side_shut_is_no_failure_and_its_number_may_be_anothers_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    with ExitStack() as undo:
        handshakes, faults = hearing(1, undo)
        for descriptor in (7, 8):
            assert not handshakes.hear(zmq.EVENT_ACCEPTED, descriptor)
        handshakes.shut(7)
        handshakes.hear(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 104)
        assert not handshakes.hear(zmq.EVENT_DISCONNECTED, 7)
        assert not handshakes.hear(zmq.EVENT_DISCONNECTED, 8)
        assert (faults.counts(), caplog.messages) == ({}, [])
        handshakes.hear(zmq.EVENT_ACCEPTED, 7)
        handshakes.hear(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_INVALID_SEQUENCE)
        handshakes.hear(zmq.EVENT_DISCONNECTED, 7)
    assert faults.counts() == {"handshake_failed_protocol": 1}
    assert caplog.messages == ["handshake_failed endpoint=s peer=peer-7 reason=protocol: it broke ZeroMQ's rules"]
