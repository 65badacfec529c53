"""Chunks off a real socket: what is wanted and right lies in its place, all else is thrown away and counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from forebay.sockets import ChunkReceiver
from forebay.wire import (
    BITSHUFFLE_LZ4,
    CHUNK_HEADER_BYTES,
    CODECS,
    SHUFFLE_LZ4,
    Arrivals,
    ChunkFault,
    ChunkHeader,
    Incoming,
    Span,
    SpanTable,
    chunk_checksum,
    encode_chunk,
)

POISON = 0xAA
LENGTH = 1000


class Memory:
    """A body of three spans of a thousand bytes, all of them missing."""

    def __init__(self) -> None:
        self.body = bytearray([POISON]) * (3 * LENGTH)
        self.arrivals = Arrivals(0, 0, 0, SpanTable([Span(0, 3 * LENGTH, 0, 1)], LENGTH))
        self.incoming = Incoming()
        self.incoming.open(self.arrivals)
        self.completed: list[Arrivals] = []
        self.asked: list[int] = []
        self.is_gone = False

    def target(self, header: ChunkHeader) -> memoryview | None:
        self.asked.append(header.span)
        return None if self.is_gone else memoryview(self.body)[header.offset : header.offset + header.length]

    @property
    def missing(self) -> list[int]:
        return [index for first, count in self.arrivals.missing() for index in range(first, first + count)]

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
        self._receiver = ChunkReceiver(
            self._pull, self.memory.incoming, self.memory.target, self.memory.completed.append
        )

    def send(self, *frames: bytes) -> None:
        self._push.send_multipart(frames)

    def receive(self, count: int = 1) -> Memory:
        for _ in range(count):
            self._receiver.receive()
        assert not self.memory.arrivals.is_written_to
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
    memory = line.receive(2)
    assert (memory.missing, memory.incoming.faults(), memory.completed) == ([1], {}, [])
    assert [memory.at(span) for span in (0, 1, 2)] == [data(0), bytes([POISON]) * LENGTH, data(2)]


def test_the_last_chunk_is_told_once(line: Line) -> None:
    for span in (2, 0, 1, 1):
        line.send(header(span), data(span))
    memory = line.receive(4)
    assert memory.completed == [memory.arrivals]
    assert memory.incoming.faults() == {ChunkFault.REPEATED: 1}


@pytest.mark.parametrize("codec", [SHUFFLE_LZ4, BITSHUFFLE_LZ4])
def test_an_encoded_chunk_is_decoded_into_its_place(line: Line, codec: str) -> None:
    encoded = encode_chunk(codec, memoryview(data(1)), 2)
    assert encoded is not None
    line.send(header(1, codec=CODECS.index(codec)), encoded)
    memory = line.receive()
    assert (memory.missing, memory.incoming.faults()) == ([0, 2], {})
    assert memory.at(1) == data(1)
    assert memory.at(0) == memory.at(2) == bytes([POISON]) * LENGTH


def test_a_chunk_whose_place_has_gone_is_thrown_away(line: Line) -> None:
    line.memory.is_gone = True
    line.send(header(0), data(0))
    memory = line.receive()
    assert memory.incoming.faults() == {ChunkFault.NOT_GRANTED: 1}
    assert memory.missing == [0, 1, 2]


ENCODED = encode_chunk(SHUFFLE_LZ4, memoryview(bytes([1]) * LENGTH), 2) or b""

BAD: dict[str, tuple[ChunkFault, tuple[bytes, ...]]] = {
    "no body": (ChunkFault.MALFORMED, (header(0),)),
    "garbage": (ChunkFault.MALFORMED, (b"garbage", data(0))),
    "an empty header": (ChunkFault.MALFORMED, (b"", data(0))),
    "a long header": (ChunkFault.MALFORMED, (header(0) + b"x", data(0))),
    "another magic": (ChunkFault.MALFORMED, (b"FBC1" + header(0)[4:], data(0))),
    "zeros": (ChunkFault.MALFORMED, (bytes(CHUNK_HEADER_BYTES), data(0))),
    "garbage of many frames": (ChunkFault.MALFORMED, (b"x",) * 10),
    "nobody's": (ChunkFault.NOT_GRANTED, (header(0, slot=7), data(0))),
    "nobody's without a body": (ChunkFault.MALFORMED, (header(0, slot=7),)),
    "nobody's of many frames": (ChunkFault.NOT_GRANTED, (header(0, slot=7), *(b"x",) * 10)),
    "a short body": (ChunkFault.WRONG_LENGTH, (header(0), data(0)[:-1])),
    "an empty body": (ChunkFault.WRONG_LENGTH, (header(0), b"")),
    "a long body": (ChunkFault.WRONG_LENGTH, (header(0), data(0) + b"x")),
    "a third frame": (ChunkFault.WRONG_LENGTH, (header(0), data(0), b"more")),
    "a flipped bit": (ChunkFault.WRONG_CHECKSUM, (header(0), b"\x00" + data(0)[1:])),
    "a wrong checksum": (ChunkFault.WRONG_CHECKSUM, (header(0, checksum=1), data(0))),
    "another offset": (ChunkFault.WRONG_SPAN, (header(0, offset=1), data(0))),
    "a span too many": (ChunkFault.WRONG_SPAN, (header(3), data(3))),
    "an unknown codec": (ChunkFault.WRONG_CODEC, (header(0, codec=len(CODECS)), data(0))),
    "raw bytes said to be encoded": (ChunkFault.DAMAGED, (header(0, codec=1), data(0))),
    "nothing said to be encoded": (ChunkFault.DAMAGED, (header(0, codec=1), b"")),
    "encoded bytes cut short": (ChunkFault.DAMAGED, (header(0, codec=1), ENCODED[:-1])),
    "encoded bytes and more": (ChunkFault.DAMAGED, (header(0, codec=1), ENCODED + b"x")),
    "an encoded third frame": (ChunkFault.WRONG_LENGTH, (header(0, codec=1), ENCODED, b"more")),
    "encoded bytes said to be raw": (ChunkFault.WRONG_LENGTH, (header(0), ENCODED)),
    "other bytes, encoded": (ChunkFault.WRONG_CHECKSUM, (header(0, of=data(4), codec=1), ENCODED)),
    "a bomb": (ChunkFault.DAMAGED, (header(0, codec=1), ENCODED[:4] + b"\xff\xff\xff\x7f" + ENCODED[8:])),
}


@pytest.mark.parametrize(("fault", "frames"), BAD.values(), ids=BAD)
def test_any_other_is_thrown_away_counted_and_the_next_one_is_received(
    line: Line, fault: ChunkFault, frames: tuple[bytes, ...]
) -> None:
    line.send(*frames)
    line.send(header(1), data(1))
    memory = line.receive(2)
    assert memory.incoming.faults() == {fault: 1}
    assert memory.missing == [0, 2]
    assert memory.at(1) == data(1)
    assert memory.at(2) == bytes([POISON]) * LENGTH, "nothing is written beside its place"


def test_a_body_is_not_read_before_its_header_is_known_to_be_wanted(line: Line) -> None:
    line.send(header(0, slot=7), data(0))
    memory = line.receive()
    assert memory.asked == []
    assert memory.body == bytearray([POISON]) * (3 * LENGTH)
