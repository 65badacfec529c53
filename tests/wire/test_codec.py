"""Codecs: all bits come back, what does not become smaller is left, a hostile frame writes nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numcodecs import blosc

from forebay.wire import (
    BITSHUFFLE_LZ4,
    CODECS,
    DTYPES,
    MIB,
    RAW,
    SHUFFLE_LZ4,
    Array,
    ProtocolError,
    decode_chunk,
    encode_chunk,
)

GUARD = bytes([0xA5]) * 4096
POISON = 0x5A
HEAD_BYTES = 16
DECODED_BYTES_AT, ENCODED_BYTES_AT = 4, 12
both_codecs = pytest.mark.parametrize("codec", [SHUFFLE_LZ4, BITSHUFFLE_LZ4])


class Place:
    """A chunk's place in the middle of a larger buffer."""

    def __init__(self, nbytes: int) -> None:
        self._memory = bytearray(GUARD + bytes([POISON]) * nbytes + GUARD)
        self.target = memoryview(self._memory)[len(GUARD) : len(GUARD) + nbytes]

    def assert_nothing_beside_it_was_written(self) -> None:
        assert self._memory.startswith(GUARD)
        assert self._memory.endswith(GUARD)

    @property
    def is_untouched(self) -> bool:
        return bytes(self.target) == bytes([POISON]) * len(self.target)


def travelled(codec: str, data: memoryview, itemsize: int) -> bytes:
    """Sends a chunk as a sender and a receiver would; returns what lies in its place."""
    encoded = encode_chunk(codec, data, itemsize)
    if encoded is None:
        return bytes(data)
    assert len(encoded) < len(data)
    place = Place(len(data))
    decode_chunk(codec, encoded, place.target)
    place.assert_nothing_beside_it_was_written()
    return bytes(place.target)


def octets(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def odd_patterns(itemsize: int) -> list[bytes]:
    """Returns elements that a computation would not keep: read as floats, -0.0, sub-normal, infinite, two NaNs."""
    zeros = bytes(itemsize)
    return [
        (zeros + b"\x80")[-itemsize:],
        (b"\x01" + zeros)[:itemsize],
        (zeros + b"\x80\x7f")[-itemsize:],
        (b"\x01\x02" + zeros + b"\xf8\x7f")[-itemsize:],
        (b"\xef" + b"\xff" * itemsize)[:itemsize],
    ]


def repeated(patterns: list[bytes], count: int, seed: int) -> Array:
    """Returns elements of few kinds in a random order: they can be compressed, and are anything."""
    kinds = np.frombuffer(b"".join(patterns), np.uint8).reshape(len(patterns), -1)
    return kinds[np.random.default_rng(seed).integers(0, len(patterns), count)].reshape(-1)


def patterns_of(itemsize: int) -> st.SearchStrategy[list[bytes]]:
    element = st.binary(min_size=itemsize, max_size=itemsize) | st.sampled_from(odd_patterns(itemsize))
    return st.lists(element, min_size=1, max_size=6)


def frame_of(codec: str, nbytes: int = 5000, seed: int = 0) -> bytes:
    encoded = encode_chunk(codec, octets(repeated(odd_patterns(2)[:2], -(-nbytes // 2), seed))[:nbytes], 2)
    assert encoded is not None
    return encoded


def expert_ids(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 512, MIB // 2).astype(np.int16)


# --- there and back ---


@both_codecs
@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=25)
@given(data=st.data(), count=st.integers(0, 700), seed=st.integers(0, 1 << 32))
def test_any_bits_of_any_dtype_come_back(
    codec: str, name: str, data: st.DataObject, count: int, seed: int
) -> None:
    dtype = DTYPES[name]
    array = repeated(data.draw(patterns_of(dtype.itemsize)), count, seed).view(dtype)
    assert travelled(codec, octets(array), dtype.itemsize) == array.tobytes()


@both_codecs
@given(data=st.data(), itemsize=st.sampled_from([1, 2, 4, 8, 16]), nbytes=st.integers(0, 5000))
def test_a_length_that_is_no_multiple_of_the_element_comes_back(
    codec: str, data: st.DataObject, itemsize: int, nbytes: int
) -> None:
    array = repeated(data.draw(patterns_of(itemsize)), nbytes // itemsize + 1, nbytes)
    assert travelled(codec, octets(array)[:nbytes], itemsize) == array.tobytes()[:nbytes]


@both_codecs
@given(chunk=st.binary(max_size=400), itemsize=st.sampled_from([1, 2, 4, 8, 16]))
def test_any_bytes_at_all_come_back(codec: str, chunk: bytes, itemsize: int) -> None:
    assert travelled(codec, memoryview(chunk), itemsize) == chunk


def few_kinds(nbytes: int) -> bytes:
    return repeated(odd_patterns(4), nbytes // 4 + 1, 1).tobytes()[:nbytes]


def anything(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).bytes(nbytes)


@both_codecs
@pytest.mark.parametrize("make", [bytes, few_kinds, anything])
@pytest.mark.parametrize("nbytes", [0, 1, 15, 16, 17, 127, 128, 129, 255, 256, 257, MIB - 1, MIB, MIB + 1])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_every_size_comes_back(codec: str, make: Callable[[int], bytes], nbytes: int, itemsize: int) -> None:
    chunk = make(nbytes)
    assert travelled(codec, memoryview(chunk), itemsize) == chunk


@both_codecs
def test_a_frame_of_any_kind_of_buffer_is_decoded(codec: str) -> None:
    frame, place = frame_of(codec), Place(5000)
    decode_chunk(codec, frame, place.target)
    expected = bytes(place.target)
    for buffer in (bytearray(frame), memoryview(b"x" + frame + b"x")[1:-1], np.frombuffer(frame, np.uint8)):
        again = Place(5000)
        decode_chunk(codec, buffer, again.target)
        assert bytes(again.target) == expected


@both_codecs
@pytest.mark.parametrize("nbytes", [0, 1, 16, 100, 5000, MIB])
def test_what_does_not_become_smaller_is_not_encoded(codec: str, nbytes: int) -> None:
    assert encode_chunk(codec, memoryview(anything(nbytes)), 2) is None


def test_the_codecs_and_their_order_stay_what_they_are() -> None:
    # A chunk's header holds the index: a change would set two versions of the software at odds.
    assert CODECS == (RAW, SHUFFLE_LZ4, BITSHUFFLE_LZ4) == ("raw", "shuffle-lz4", "bitshuffle-lz4")


# --- what it is for ---


@pytest.mark.parametrize("seed", range(4))
def test_expert_ids_below_512_travel_in_little_over_nine_of_their_sixteen_bits(seed: int) -> None:
    encoded = encode_chunk(BITSHUFFLE_LZ4, octets(expert_ids(seed)), 2)
    assert encoded is not None
    assert len(encoded) <= 0.575 * MIB


@pytest.mark.parametrize("row", [1 << 13, 1 << 16, 1 << 19])
def test_what_pads_the_rows_of_expert_ids_costs_next_to_nothing(row: int) -> None:
    ids = expert_ids().reshape(-1, row)
    ids[:, int(0.6 * row) :] = -1
    encoded = encode_chunk(BITSHUFFLE_LZ4, octets(ids), 2)
    assert encoded is not None
    assert len(encoded) <= 0.35 * MIB


# --- frames that are not what they say ---


def assert_refused_untouched(codec: str, frame: bytes | bytearray, place: Place) -> None:
    with pytest.raises(ProtocolError, match="an encoded chunk"):
        decode_chunk(codec, frame, place.target)
    assert place.is_untouched
    place.assert_nothing_beside_it_was_written()


@both_codecs
@given(data=st.data())
def test_a_frame_that_is_cut_short_or_goes_on_is_refused(codec: str, data: st.DataObject) -> None:
    frame = frame_of(codec)
    assert_refused_untouched(codec, frame[: data.draw(st.integers(0, len(frame) - 1))], Place(5000))
    assert_refused_untouched(codec, frame + data.draw(st.binary(min_size=1, max_size=300)), Place(5000))


@both_codecs
@pytest.mark.parametrize("compressor", ["blosclz", "zlib", "zstd"])
def test_a_frame_of_another_compressor_is_refused_unread(codec: str, compressor: str) -> None:
    frame = blosc.compress(bytes(5000), compressor.encode(), 5, blosc.NOSHUFFLE, blosc.AUTOBLOCKS, 2)
    assert_refused_untouched(codec, frame, Place(5000))


@both_codecs
def test_a_frame_of_the_other_shuffle_is_refused_unread(codec: str) -> None:
    other = {SHUFFLE_LZ4: BITSHUFFLE_LZ4, BITSHUFFLE_LZ4: SHUFFLE_LZ4}[codec]
    assert_refused_untouched(codec, frame_of(other), Place(5000))


@both_codecs
@given(nbytes=st.integers(0, 10_000).filter(lambda nbytes: nbytes != 5000))
@example(4999)
@example(5001)
@example(0)
def test_a_frame_of_more_or_fewer_bytes_than_its_place_is_refused(codec: str, nbytes: int) -> None:
    assert_refused_untouched(codec, frame_of(codec), Place(nbytes))


@both_codecs
@pytest.mark.parametrize("at", [DECODED_BYTES_AT, ENCODED_BYTES_AT])
@given(declared=st.integers(0, (1 << 32) - 1))
@example((1 << 32) - 1)
@example(0)
def test_a_frame_that_declares_other_sizes_is_refused(codec: str, at: int, declared: int) -> None:
    frame = bytearray(frame_of(codec))
    if frame[at : at + 4] != declared.to_bytes(4, "little"):
        frame[at : at + 4] = declared.to_bytes(4, "little")
        assert_refused_untouched(codec, frame, Place(5000))


@both_codecs
@given(frame=st.binary(max_size=100), nbytes=st.integers(0, 200))
def test_garbage_is_refused(codec: str, frame: bytes, nbytes: int) -> None:
    place = Place(nbytes)
    with pytest.raises(ProtocolError, match="an encoded chunk"):
        decode_chunk(codec, frame, place.target)
    place.assert_nothing_beside_it_was_written()


def decode_or_refuse(codec: str, frame: bytes | bytearray, place: Place) -> None:
    with contextlib.suppress(ProtocolError):
        decode_chunk(codec, frame, place.target)
    place.assert_nothing_beside_it_was_written()


@both_codecs
@pytest.mark.parametrize("place_in_head", range(HEAD_BYTES))
def test_no_header_makes_a_frame_write_beside_its_place(codec: str, place_in_head: int) -> None:
    frame = bytearray(frame_of(codec))
    for value in range(256):
        frame[place_in_head] = value
        decode_or_refuse(codec, frame, Place(5000))


@both_codecs
@settings(max_examples=300)
@given(data=st.data(), nbytes=st.sampled_from([400, 1000, 5000, 70_000]))
def test_no_damage_makes_a_frame_write_beside_its_place(codec: str, data: st.DataObject, nbytes: int) -> None:
    frame = bytearray(frame_of(codec, nbytes, seed=nbytes))
    near = st.integers(0, min(len(frame), 80) - 1) | st.integers(0, len(frame) - 1)
    for at in data.draw(st.lists(near, min_size=1, max_size=5)):
        frame[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    # So that the damage gets past the first look.
    frame[DECODED_BYTES_AT : DECODED_BYTES_AT + 4] = nbytes.to_bytes(4, "little")
    frame[ENCODED_BYTES_AT : ENCODED_BYTES_AT + 4] = len(frame).to_bytes(4, "little")
    decode_or_refuse(codec, frame, Place(nbytes))
