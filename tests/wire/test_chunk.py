from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.wire import CHUNK_HEADER_BYTES, ChunkHeader, ProtocolError, chunk_checksum

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
headers = st.builds(
    ChunkHeader, slot=u32, span=u32, length=u32, generation=u64, token=u64, offset=u64, checksum=u64
)


@given(headers)
def test_a_header_survives_the_wire(header: ChunkHeader) -> None:
    frame = header.pack()
    assert len(frame) == CHUNK_HEADER_BYTES
    for form in (frame, bytearray(frame), memoryview(frame)):
        assert ChunkHeader.unpack(form) == header


def test_the_documented_bytes_are_exactly_these() -> None:
    header = ChunkHeader(slot=1, span=2, length=3, generation=4, token=5, offset=6, checksum=7, codec=8)
    assert CHUNK_HEADER_BYTES == 56
    assert header.pack() == (
        b"FBC2\x01\0\0\0\x02\0\0\0\x03\0\0\0"
        b"\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0"
        b"\x08\0\0\0\0\0\0\0"
    )


@given(st.binary(max_size=100))
@example(b"")
@example(b"FBC2")
@example(b"FBC2" + bytes(51))
@example(b"FBC2" + bytes(53))
@example(b"FBC1" + bytes(52))
@example(bytes(56))
def test_garbage_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="chunk header"):
        ChunkHeader.unpack(frame)


@given(headers, st.integers(0, 3), st.integers(1, 255))
def test_any_damage_to_the_magic_is_seen(header: ChunkHeader, place: int, flip: int) -> None:
    frame = bytearray(header.pack())
    frame[place] ^= flip
    with pytest.raises(ProtocolError, match="magic"):
        ChunkHeader.unpack(frame)


@given(st.binary(min_size=1, max_size=300), u64, u64)
def test_good_bytes_in_the_wrong_place_fail_their_checksum(data: bytes, offset: int, other: int) -> None:
    assert (chunk_checksum(data, offset) == chunk_checksum(data, other)) == (offset == other)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_flipped_bit_fails_its_checksum(data: bytes, draw: st.DataObject) -> None:
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << (bit % 8)
    assert chunk_checksum(data, 64) != chunk_checksum(damaged, 64)
    assert chunk_checksum(data, 64) == chunk_checksum(memoryview(bytearray(data)), 64)


def test_the_checksum_is_xxh3_64_and_stays_so() -> None:
    # Known answers: a change would set two versions of the software at odds.
    assert chunk_checksum(b"", 0) == 0x2D06800538D394C2
    assert struct.pack(">Q", chunk_checksum(b"forebay", 64)).hex() == "dcf8e7ceafbe00ed"
