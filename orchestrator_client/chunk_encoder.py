"""Chunks made ready to leave, in order: encoded ahead on threads, where that pays."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from forebay.wire import (
    CODECS,
    MAX_CHUNK_BYTES,
    RAW,
    BytesLike,
    ChunkHeader,
    Granted,
    LocalError,
    ProtocolError,
    Span,
    chunk_checksum,
    encode_chunk,
)

from .link_rate import LinkRate
from .payload import Payload

_ENCODE_S: Final = 60.0
_MAX_ENCODERS: Final = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that may leave.

    Attributes:
        header: Its header, packed.
        data: Its bytes as they travel.
        span: What it carries.
    """

    header: bytes
    data: BytesLike
    span: Span


class ChunkEncoder:
    """Makes chunks of payloads; for one sending at a time.

    Args:
        rate: What is known of the link; whether encoding pays is asked anew for every chunk.
        encoders: Threads that encode, beside the one that sends; by default half of this host's processors.
    """

    def __init__(self, rate: LinkRate, encoders: int | None = None) -> None:
        self._rate = rate
        self._encoders = encoders or min(_MAX_ENCODERS, max(1, (os.cpu_count() or 1) // 2))
        self._encoding: set[concurrent.futures.Future[Chunk]] = set()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def chunks(self, payload: Payload, grant: Granted) -> Generator[Chunk, None, None]:
        """Yields what a grant says is missing; stays a few chunks ahead.

        Raises:
            ProtocolError: The grant does not fit the payload.
            LocalError: Encoding hangs.
        """
        if not 1 <= grant.chunk_bytes <= MAX_CHUNK_BYTES:
            limit = f"1 to {MAX_CHUNK_BYTES} bytes"
            raise ProtocolError("a grant cuts the body into impossible pieces", got=grant.chunk_bytes, limit=limit)
        layout = payload.manifest.layout(grant.chunk_bytes)
        ahead: deque[Callable[[], Chunk]] = deque()
        try:
            for index in _indices(grant.missing, len(layout.spans)):
                ahead.append(self._begin(payload, grant, index, layout.spans[index], layout.offsets))
                if len(ahead) > 2 * self._encoders:
                    yield ahead.popleft()()
            while ahead:
                yield ahead.popleft()()
        finally:
            # What is being encoded still reads the caller's arrays, which are let go after this.
            still_read = concurrent.futures.wait(self._encoding, _ENCODE_S).not_done
            self._encoding.clear()
            if still_read:
                raise LocalError(f"waited {_ENCODE_S:g} s for {len(still_read)} chunks to be encoded")

    def _begin(
        self, payload: Payload, grant: Granted, index: int, span: Span, offsets: Sequence[int]
    ) -> Callable[[], Chunk]:
        choice = payload.choice_for(span)
        if not choice.pays(self._rate.bytes_per_s, self._encoders):
            return lambda: _raw_chunk(payload.read(span, offsets), grant, index, span)
        itemsize = payload.itemsizes[span.first_leaf]
        data = payload.read(span, offsets)
        encoding = self._threads().submit(_encoded_chunk, data, grant, index, span, choice.codec, itemsize)
        self._encoding.add(encoding)

        def encoded() -> Chunk:
            self._encoding.discard(encoding)
            try:
                return encoding.result(_ENCODE_S)
            except TimeoutError as error:
                words = f"waited {_ENCODE_S:g} s for a chunk of {span.length} bytes to be encoded ({choice.codec})"
                raise LocalError(words) from error

        return encoded

    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self._encoders, "forebay-encoder")
        return self._pool

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _raw_chunk(data: memoryview, grant: Granted, index: int, span: Span) -> Chunk:
    return Chunk(_header(data, grant, index, span, RAW), data, span)


def _encoded_chunk(data: memoryview, grant: Granted, index: int, span: Span, codec: str, itemsize: int) -> Chunk:
    encoded = encode_chunk(codec, data, itemsize)
    if encoded is None:
        return _raw_chunk(data, grant, index, span)
    return Chunk(_header(data, grant, index, span, codec), encoded, span)


def _header(data: memoryview, grant: Granted, index: int, span: Span, codec: str) -> bytes:
    header = ChunkHeader(
        slot=grant.slot,
        span=index,
        length=span.length,
        generation=grant.generation,
        token=grant.token,
        offset=span.offset,
        checksum=chunk_checksum(data, span.offset),
        codec=CODECS.index(codec),
    )
    return header.pack()


def _indices(runs: Sequence[tuple[int, int]], span_count: int) -> Iterable[int]:
    for first, count in runs:
        if first < 0 or first + count > span_count:
            raise ProtocolError("a grant asks for spans that there are not", got=(first, count), limit=span_count)
    return itertools.chain.from_iterable(range(first, first + count) for first, count in runs)
