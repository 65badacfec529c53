"""Who is connected, as ZeroMQ's monitor tells it; in the orders in which several of its threads may tell it."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from forebay.sockets import Endpoint
from forebay.sockets.connections import Headcount
from forebay.wire import Peer

PATIENCE_MS = 20_000
LIMIT = 3
CONNECTS = 1000
DIALERS = 4
AT_ONCE = 80
"""Fewer than the backlog that ZeroMQ asks for."""
UNLIMITED = 1 << 30


def tell(headcount: Headcount, told: tuple[str, int]) -> bool:
    word, descriptor = told
    if word == "came":
        return headcount.came(descriptor)
    headcount.left(descriptor)
    return False


@st.composite
def tellings(draw: st.DrawFn) -> tuple[list[tuple[str, int]], int]:
    """Draws what is told of connections, and how many of them are left: a number has one after the other."""
    lines: list[list[tuple[str, int]]] = []
    present = 0
    for descriptor in range(draw(st.integers(1, 4))):
        line: list[tuple[str, int]] = []
        for is_early in draw(st.lists(st.booleans(), max_size=4)):
            words = ("left", "came") if is_early else ("came", "left")
            line += [(word, descriptor) for word in words]
        if draw(st.booleans()):
            line.append(("came", descriptor))
            present += 1
        lines.append(line)
    order = draw(st.permutations([number for number, line in enumerate(lines) for _ in line]))
    following = [iter(line) for line in lines]
    return [next(following[number]) for number in order], present


@given(tellings())
def test_the_count_is_right_in_whatever_order_comings_and_leavings_are_told(
    history: tuple[list[tuple[str, int]], int],
) -> None:
    told, present = history
    headcount = Headcount(UNLIMITED)
    for each in told:
        assert not tell(headcount, each)
    assert len(headcount) == present


@given(tellings())
def test_there_is_room_for_as_many_as_may_be_once_all_have_left(
    history: tuple[list[tuple[str, int]], int],
) -> None:
    told, _ = history
    headcount = Headcount(LIMIT)
    for each in told:
        tell(headcount, each)
        assert len(headcount) <= LIMIT
    for descriptor in {descriptor for word, descriptor in told if word == "came"}:
        if told.count(("came", descriptor)) > told.count(("left", descriptor)):
            headcount.left(descriptor)
    assert len(headcount) == 0
    others = range(100, 100 + LIMIT + 1)
    assert [headcount.came(descriptor) for descriptor in others] == [False] * LIMIT + [True]


def test_one_too_many_that_leaves_makes_no_room_and_is_forgotten() -> None:
    headcount = Headcount(1)
    assert not headcount.came(7)
    assert headcount.came(8)
    assert headcount.is_surplus(8)
    headcount.left(8)
    assert not headcount.is_surplus(8)
    assert len(headcount) == 1
    headcount.left(7)
    assert not headcount.came(8), "it is told as one that came anew"


class Told(Headcount):
    """Counts what is told, and lets so many dial at once that the kernel loses none who wait to be taken."""

    words = 0

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.room = threading.Semaphore(AT_ONCE)

    def came(self, descriptor: int) -> bool:
        self.words += 1
        return super().came(descriptor)

    def left(self, descriptor: int) -> None:
        self.words += 1
        super().left(descriptor)
        self.room.release()


def dial_and_leave(address: str, count: int, room: threading.Semaphore) -> None:
    for _ in range(count):
        room.acquire(timeout=PATIENCE_MS / 1000)
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as dialled:
            dialled.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves at once


def test_nobody_is_counted_who_came_and_left_at_once_where_several_threads_tell_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.sockets.connections.Headcount", Told)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=8)
    peer = Peer(name="test", pid=os.getpid(), host="here")
    endpoint = Endpoint(context, zmq.PULL, "tcp://127.0.0.1:*", setting="s", peer=peer, max_frame_bytes=1000)
    connections = endpoint.connections
    told = connections._present
    assert isinstance(told, Told)
    dialers = [
        threading.Thread(target=dial_and_leave, args=(endpoint.address, CONNECTS, told.room), daemon=True)
        for _ in range(DIALERS)
    ]
    try:
        for dialer in dialers:
            dialer.start()
        while told.words < 2 * DIALERS * CONNECTS:
            assert connections.monitor.poll(PATIENCE_MS), "nobody tells of the others"
            connections.attend()
        assert len(connections) == 0
        assert connections.refused_count == 0
        assert not told._left_early, "each leaving belongs to one coming"
    finally:
        endpoint.close(linger_ms=0)
        for dialer in dialers:
            dialer.join(PATIENCE_MS / 1000)
        context.term()
