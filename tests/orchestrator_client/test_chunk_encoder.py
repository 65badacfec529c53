"""Chunks made ready to leave: in order, decoded to the same bytes, encoded only where it was chosen and helps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.orchestrator_client.chunk_encoder import Chunk, ChunkEncoder
from forebay.orchestrator_client.codec_choice import AS_IT_IS, CodecChoice
from forebay.orchestrator_client.link_rate import LinkRate
from forebay.orchestrator_client.payload import Payload, WireBytes
from forebay.wire import (
    BITSHUFFLE_LZ4,
    CODECS,
    RAW,
    SHUFFLE_LZ4,
    ChunkHeader,
    Granted,
    Limits,
    Offer,
    ProtocolError,
    Span,
    chunk_checksum,
    decode_chunk,
    default_registry,
    encode_chunk,
    flatten,
)

from .fake_daemon import grant

CHUNK = 4096
LIMITS = Limits(chunk_bytes=CHUNK)
RNG = np.random.default_rng(7)
OFFER = Offer(id=1, queue="train", key="k", attempt="a", manifest=b"", wait_s=0.0)
AUTO = CodecChoice(BITSHUFFLE_LZ4, ratio=0.5, encode_bytes_per_s=1e9)

ids = RNG.integers(0, 512, 5 * CHUNK).astype(np.int16)
noise = np.frombuffer(RNG.bytes(3 * CHUNK), np.uint8)


def forced(codec: str) -> CodecChoice:
    return CodecChoice(codec, is_forced=True)


def payload_of(tree: Any, *choices: CodecChoice) -> Payload:
    flat = flatten(tree, registry=default_registry, limits=LIMITS)
    return Payload.of(flat, LIMITS, choices or None)


def all_of(payload: Payload, chunk_bytes: int = CHUNK) -> Granted:
    spans = len(payload.manifest.layout(chunk_bytes).spans)
    return msgspec.structs.replace(grant(OFFER, (0, spans)), chunk_bytes=chunk_bytes)


@pytest.fixture
def rate() -> LinkRate:
    return LinkRate()


@pytest.fixture
def encoder(rate: LinkRate) -> Iterator[ChunkEncoder]:
    encoder = ChunkEncoder(rate, encoders=2)
    yield encoder
    encoder.close()


def headers(chunks: Iterable[Chunk]) -> list[ChunkHeader]:
    return [ChunkHeader.unpack(chunk.header) for chunk in chunks]


def codecs(chunks: Iterable[Chunk]) -> list[str]:
    return [CODECS[header.codec] for header in headers(chunks)]


def received(chunks: Iterable[Chunk], body_bytes: int) -> bytes:
    """Puts chunks in their places as a receiver would."""
    body = bytearray(body_bytes)
    for chunk in chunks:
        header = ChunkHeader.unpack(chunk.header)
        assert (header.offset, header.length) == (chunk.span.offset, chunk.span.length)
        place = memoryview(body)[header.offset : header.offset + header.length]
        if CODECS[header.codec] == RAW:
            place[:] = chunk.data
        else:
            assert len(chunk.data) < header.length
            decode_chunk(CODECS[header.codec], chunk.data, place)
        assert chunk_checksum(place, header.offset) == header.checksum
    return bytes(body)


# --- what leaves ---


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_come_in_order_with_headers_that_say_what_they_are(encoder: ChunkEncoder, codec: str) -> None:
    payload = payload_of({"ids": ids}, AS_IT_IS if codec == RAW else forced(codec))
    chunks = list(encoder.chunks(payload, all_of(payload)))
    for index, header in enumerate(headers(chunks)):
        assert (header.slot, header.generation, header.token) == (0, 1, 7)
        assert (header.span, header.offset, header.length) == (index, index * CHUNK, CHUNK)
        assert CODECS[header.codec] == codec
    assert received(chunks, ids.nbytes) == ids.tobytes()


def test_each_leaf_travels_as_was_chosen_for_it(encoder: ChunkEncoder) -> None:
    tree = {"ids": ids, "raw": ids.copy(), "shuffled": np.arange(2 * CHUNK, dtype=np.int32)}
    payload = payload_of(tree, forced(BITSHUFFLE_LZ4), AS_IT_IS, forced(SHUFFLE_LZ4))
    chunks = list(encoder.chunks(payload, all_of(payload)))
    assert codecs(chunks) == [BITSHUFFLE_LZ4] * 10 + [RAW] * 10 + [SHUFFLE_LZ4] * 8
    assert [leaf.codec for leaf in payload.manifest.leaves] == [BITSHUFFLE_LZ4, RAW, SHUFFLE_LZ4]
    assert received(chunks, len(payload.body())) == payload.body()


def test_a_chunk_that_would_not_become_smaller_goes_raw(encoder: ChunkEncoder) -> None:
    mixed = np.concatenate([ids, noise.view(np.int16), ids])
    payload = payload_of({"mixed": mixed}, forced(BITSHUFFLE_LZ4))
    chunks = list(encoder.chunks(payload, all_of(payload)))
    assert codecs(chunks) == [BITSHUFFLE_LZ4] * 10 + [RAW] * 3 + [BITSHUFFLE_LZ4] * 10
    assert received(chunks, mixed.nbytes) == mixed.tobytes()


def test_small_leaves_that_share_a_chunk_go_raw_and_others_do_not_care(encoder: ChunkEncoder) -> None:
    tree = {"small": [np.full(9, number, np.int8) for number in range(20)], "large": ids}
    payload = payload_of(tree, *[forced(SHUFFLE_LZ4)] * 21)
    chunks = list(encoder.chunks(payload, all_of(payload)))
    assert codecs(chunks) == [RAW] + [SHUFFLE_LZ4] * 10
    assert (chunks[0].span.leaf_count, chunks[0].span.length) == (20, 19 * 64 + 9)
    assert received(chunks, len(payload.body())) == payload.body()


def test_raw_chunks_are_the_callers_own_memory(encoder: ChunkEncoder) -> None:
    payload = payload_of({"ids": ids})
    for chunk in encoder.chunks(payload, all_of(payload)):
        assert np.shares_memory(np.frombuffer(chunk.data, np.uint8), ids)


def test_only_what_is_missing_is_made_in_the_order_of_the_grant(encoder: ChunkEncoder) -> None:
    payload = payload_of({"ids": ids}, forced(BITSHUFFLE_LZ4))
    chunks = list(encoder.chunks(payload, grant(OFFER, (7, 2), (0, 1), (5, 0), (3, 1))))
    assert [header.span for header in headers(chunks)] == [7, 8, 0, 3]
    assert list(encoder.chunks(payload, grant(OFFER))) == []


leaves = st.tuples(
    st.integers(0, 700),
    st.sampled_from(["int8", "int16", "float32", "complex128"]),
    st.booleans(),
    st.sampled_from([AS_IT_IS, forced(SHUFFLE_LZ4), forced(BITSHUFFLE_LZ4)]),
)


@given(made=st.lists(leaves, max_size=8), chunk_bytes=st.integers(1, 1500))
def test_any_leaves_in_any_codecs_and_chunks_arrive_as_they_are(
    made: list[tuple[int, str, bool, CodecChoice]], chunk_bytes: int
) -> None:
    tree = [
        (noise if is_noise else ids.view(np.uint8))[: count * np.dtype(dtype).itemsize].view(dtype)
        for count, dtype, is_noise, _ in made
    ]
    payload = payload_of(tree, *(choice for *_, choice in made))
    encoder = ChunkEncoder(LinkRate(), encoders=1)
    wire_bytes = WireBytes(payload)
    chunks = list(encoder.chunks(payload, all_of(payload, chunk_bytes)))
    encoder.close()
    for chunk in chunks:
        wire_bytes.sent(chunk.span, len(chunk.data))
    assert received(chunks, len(payload.body())) == payload.body()
    reports = wire_bytes.report()
    assert sum(report.wire_bytes for report in reports) == wire_bytes.total
    assert all(report.wire_bytes <= report.payload_bytes for report in reports)
    assert wire_bytes.total <= payload.manifest.payload_bytes


# --- when it pays ---


class Begun(Payload):
    """Tells how many chunks were begun."""

    count = 0

    def choice_for(self, span: Span) -> CodecChoice:
        Begun.count += 1
        return super().choice_for(span)


def test_whether_encoding_pays_is_asked_anew_for_every_chunk_a_few_ahead(
    encoder: ChunkEncoder, rate: LinkRate
) -> None:
    plain = payload_of({"ids": ids}, AUTO)
    payload, Begun.count = Begun(plain.manifest, plain.leaves, plain.choices, plain.itemsizes), 0
    chunks = encoder.chunks(payload, all_of(payload))
    made = [next(chunks)]
    assert Begun.count == 5
    rate.bytes_per_s = 1e6
    made += [next(chunks) for _ in range(5)]
    rate.bytes_per_s = 1e12
    made += chunks
    assert codecs(made) == [RAW] * 5 + [BITSHUFFLE_LZ4] * 5


def test_chunks_are_encoded_on_other_threads(encoder: ChunkEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def watched(*arguments: Any) -> bytes | None:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return encode_chunk(*arguments)

    monkeypatch.setattr("forebay.orchestrator_client.chunk_encoder.encode_chunk", watched)
    payload = payload_of({"ids": ids}, forced(SHUFFLE_LZ4))
    list(encoder.chunks(payload, all_of(payload)))
    assert threads == {"forebay-encoder"}


def encoder_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("forebay-encoder")]


def test_its_end_ends_its_threads_also_in_the_middle_of_a_payload() -> None:
    encoder = ChunkEncoder(LinkRate())
    payload = payload_of({"ids": ids}, forced(SHUFFLE_LZ4))
    chunks = encoder.chunks(payload, all_of(payload))
    next(chunks)
    assert encoder_threads()
    for _ in range(2):
        encoder.close()
        assert not encoder_threads()


def test_one_that_encodes_nothing_has_no_threads(encoder: ChunkEncoder) -> None:
    payload = payload_of({"ids": ids})
    list(encoder.chunks(payload, all_of(payload)))
    assert not encoder_threads()


# --- grants that do not fit ---


@pytest.mark.parametrize(
    "runs", [[(10, 1)], [(0, 11)], [(-1, 1)], [(-1, 0)], [(0, 1), (9, 2)], [(0, 1), (1 << 40, 1)], [(0, 1 << 62)]]
)
def test_a_grant_for_other_spans_than_there_are_is_refused_before_anything_leaves(
    encoder: ChunkEncoder, runs: list[tuple[int, int]]
) -> None:
    payload = payload_of({"ids": ids}, forced(SHUFFLE_LZ4))
    chunks = encoder.chunks(payload, grant(OFFER, *runs))
    with pytest.raises(ProtocolError, match="spans that there are not"):
        next(chunks)
    assert not encoder_threads()


@pytest.mark.parametrize("chunk_bytes", [0, -1, -4096])
def test_a_grant_that_cuts_the_body_into_nothing_is_refused(encoder: ChunkEncoder, chunk_bytes: int) -> None:
    payload = payload_of({"ids": ids})
    wrong = msgspec.structs.replace(grant(OFFER, (0, 1)), chunk_bytes=chunk_bytes)
    with pytest.raises(ProtocolError):
        next(encoder.chunks(payload, wrong))
