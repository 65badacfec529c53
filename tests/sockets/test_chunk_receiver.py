"""Chunks off a real socket: what is wanted and right lies in its place, all else is thrown away and counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from forebay.sockets import ChunkReceiver
from forebay.wire import CHUNK_HEADER_BYTES, ChunkFault, ChunkHeader, chunk_checksum

POISON = 0xAA
LENGTH = 100


class Memory:
    """Three places of a hundred bytes; each wants one chunk."""

    def __init__(self) -> None:
        self.body = bytearray([POISON]) * (3 * LENGTH)
        self.wanted = {0, 1, 2}
        self.filled_spans: list[int] = []
        self.faults: list[ChunkFault] = []
        self.asked: list[int] = []

    def fault(self, header: ChunkHeader) -> ChunkFault | None:
        self.asked.append(header.span)
        return None if header.span in self.wanted else ChunkFault.NOT_GRANTED

    def target(self, header: ChunkHeader) -> memoryview:
        return memoryview(self.body)[header.span * LENGTH : header.span * LENGTH + header.length]

    def filled(self, header: ChunkHeader) -> None:
        self.filled_spans.append(header.span)

    def thrown_away(self, fault: ChunkFault) -> None:
        self.faults.append(fault)

    def at(self, span: int) -> bytes:
        return bytes(self.body[span * LENGTH : (span + 1) * LENGTH])


class Line:
    """A sender and a receiver."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.memory = Memory()
        self._pull = context.socket(zmq.PULL)
        self._pull.bind("inproc://chunks")
        self._push = context.socket(zmq.PUSH)
        self._push.connect("inproc://chunks")
        self._receiver = ChunkReceiver(self._pull, self.memory)

    def send(self, *frames: bytes) -> None:
        self._push.send_multipart(frames)

    def receive(self) -> Memory:
        self._receiver.receive()
        return self.memory


@pytest.fixture
def line() -> Iterator[Line]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield Line(context)
    context.destroy(linger=0)


def data(span: int, length: int = LENGTH) -> bytes:
    return bytes([span + 1]) * length


def header(span: int, of: bytes | None = None, **more: Any) -> bytes:
    of = data(span) if of is None else of
    fields = {"slot": 0, "span": span, "length": LENGTH, "generation": 0, "token": 0, "offset": span * LENGTH}
    fields["checksum"] = chunk_checksum(of, span * LENGTH)
    return ChunkHeader(**(fields | more)).pack()


def test_a_chunk_that_is_wanted_and_right_lies_in_its_place(line: Line) -> None:
    for span in (2, 0):
        line.send(header(span), data(span))
    memory = line.receive()
    assert (memory.filled_spans, memory.faults) == ([2, 0], [])
    assert [memory.at(span) for span in (0, 1, 2)] == [data(0), bytes([POISON]) * LENGTH, data(2)]


def test_without_chunks_nothing_is_waited_for(line: Line) -> None:
    assert line.receive().filled_spans == []


BAD: dict[str, tuple[ChunkFault, tuple[bytes, ...]]] = {
    "no body": (ChunkFault.MALFORMED, (header(0),)),
    "garbage": (ChunkFault.MALFORMED, (b"garbage", data(0))),
    "an empty header": (ChunkFault.MALFORMED, (b"", data(0))),
    "a long header": (ChunkFault.MALFORMED, (header(0) + b"x", data(0))),
    "another magic": (ChunkFault.MALFORMED, (b"FBC2" + header(0)[4:], data(0))),
    "zeros": (ChunkFault.MALFORMED, (bytes(CHUNK_HEADER_BYTES), data(0))),
    "garbage of many frames": (ChunkFault.MALFORMED, (b"x",) * 10),
    "nobody's": (ChunkFault.NOT_GRANTED, (header(7), data(7))),
    "nobody's without a body": (ChunkFault.NOT_GRANTED, (header(7),)),
    "nobody's of many frames": (ChunkFault.NOT_GRANTED, (header(7), *(b"x",) * 10)),
    "a short body": (ChunkFault.WRONG_LENGTH, (header(0), data(0)[:-1])),
    "an empty body": (ChunkFault.WRONG_LENGTH, (header(0), b"")),
    "a long body": (ChunkFault.WRONG_LENGTH, (header(0), data(0) + b"x")),
    "a third frame": (ChunkFault.WRONG_LENGTH, (header(0), data(0), b"more")),
    "a flipped bit": (ChunkFault.WRONG_CHECKSUM, (header(0), b"\x00" + data(0)[1:])),
    "a wrong checksum": (ChunkFault.WRONG_CHECKSUM, (header(0, checksum=1), data(0))),
    "another offset": (ChunkFault.WRONG_CHECKSUM, (header(0, offset=1), data(0))),
}


@pytest.mark.parametrize(("fault", "frames"), BAD.values(), ids=BAD)
def test_any_other_is_thrown_away_counted_and_the_next_one_is_received(
    line: Line, fault: ChunkFault, frames: tuple[bytes, ...]
) -> None:
    line.send(*frames)
    line.send(header(1), data(1))
    memory = line.receive()
    assert memory.faults == [fault]
    assert memory.filled_spans == [1]
    assert memory.at(1) == data(1)
    assert memory.at(2) == bytes([POISON]) * LENGTH, "nothing is written beside its place"


def test_a_body_is_not_read_before_its_header_is_known_to_be_wanted(line: Line) -> None:
    line.send(header(7), data(7))
    memory = line.receive()
    assert memory.asked == [7]
    assert memory.body == bytearray([POISON]) * (3 * LENGTH)


def test_one_turn_takes_no_more_than_its_share(line: Line) -> None:
    for _ in range(100):
        line.send(header(0), data(0))
    counts: list[int] = []
    while not counts or len(line.memory.filled_spans) > counts[-1]:
        counts.append(len(line.memory.filled_spans))
        line.receive()
    assert counts[1] == 32
    assert counts[-1] == 100
