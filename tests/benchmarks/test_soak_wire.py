"""The soak's proxy: what it carries, drops, delays and swallows."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from forebay.benchmarks.soak_faults import DROP, STALL, SWALLOW, TO_DAEMON, TO_ORCHESTRATOR
from forebay.benchmarks.soak_wire import Wire, free_ports

WAIT_S = 30.0


@contextlib.contextmanager
def listening() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire whose control port leads to a socket of the test."""
    control, data, *own = free_ports(4)
    with socket.create_server(("127.0.0.1", control)) as server, Wire(control, data, (own[0], own[1])) as wire:
        server.settimeout(WAIT_S)
        yield wire, server


def dial(wire: Wire) -> socket.socket:
    host, _, port = wire.endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def test_a_wire_carries_both_ways() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            here.sendall(b"hello")
            assert there.recv(64) == b"hello"
            there.sendall(b"welcome")
            assert here.recv(64) == b"welcome"


def test_a_dropped_wire_ends_its_connections_and_takes_new_ones() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            here.sendall(b"x")
            assert there.recv(1) == b"x"
            wire.begin(DROP, "both ways")
            assert ended(here)
            assert ended(there)
        with dial(wire) as again:
            second, _ = server.accept()
            with second:
                again.sendall(b"x")
                assert second.recv(1) == b"x"


def test_a_stalled_wire_delivers_later_and_loses_nothing() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            wire.begin(STALL, TO_DAEMON)
            # What goes the other way passes, and shows that the stall has begun.
            there.sendall(b"x")
            assert here.recv(1) == b"x"
            here.sendall(b"late")
            wire.end(STALL, TO_DAEMON)
            assert there.recv(64) == b"late"


def test_a_swallowing_wire_loses_bytes_and_then_the_connection() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            wire.begin(SWALLOW, TO_ORCHESTRATOR)
            here.sendall(b"x")
            assert there.recv(1) == b"x"
            there.sendall(b"never seen")
            wire.end(SWALLOW, TO_ORCHESTRATOR)
            assert ended(here)


def test_of_two_cuts_the_first_that_ends_lets_nothing_pass_that_the_other_holds() -> None:
    with listening() as (wire, server), dial(wire) as here:
        there, _ = server.accept()
        with there:
            wire.begin(STALL, "both ways")
            wire.begin(STALL, TO_DAEMON)
            here.sendall(b"late")
            there.sendall(b"x")
            wire.end(STALL, "both ways")
            # What only the first one held passes, and shows that it has ended.
            assert here.recv(1) == b"x"
            there.settimeout(0.2)
            with pytest.raises(TimeoutError):
                there.recv(1)
            there.settimeout(WAIT_S)
            wire.end(STALL, TO_DAEMON)
            assert there.recv(64) == b"late"


def ended(connection: socket.socket) -> bool:
    """Tells whether a connection ended with no byte more."""
    connection.settimeout(WAIT_S)
    try:
        return connection.recv(64) == b""
    except ConnectionError:
        return True
