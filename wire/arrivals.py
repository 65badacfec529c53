"""One micro-batch on its way into a slot, or into private memory: which spans have arrived."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator

from .chunk import ChunkHeader
from .spans import Span

_MAX_RUNS = 1024


class ChunkFault(enum.StrEnum):
    """Why a chunk's bytes are thrown away; each is a counter."""

    MALFORMED = "chunk_malformed"
    NOT_GRANTED = "chunk_not_granted"
    WRONG_SPAN = "chunk_wrong_span"
    REPEATED = "chunk_repeated"
    WRONG_LENGTH = "chunk_wrong_length"
    WRONG_CHECKSUM = "chunk_wrong_checksum"


class Arrivals:
    """The spans of a granted micro-batch that have arrived and those that are missing.

    A chunk must match the layout's span exactly, so ranges can neither overlap nor leave gaps.

    Args:
        slot: Slot index, or the number by which a receiver without slots knows it.
        generation: Slot generation.
        token: Secret of the grant.
        spans: From the layout.
    """

    def __init__(self, slot: int, generation: int, token: int, spans: tuple[Span, ...]) -> None:
        self.slot = slot
        self.generation = generation
        self.token = token
        self.received_bytes = 0
        self.total_bytes = sum(span.length for span in spans)
        self._spans = spans
        self._arrived = bytearray(len(spans))
        self._missing_count = len(spans)

    def __repr__(self) -> str:
        arrived = len(self._spans) - self._missing_count
        return f"Arrivals(slot={self.slot}, generation={self.generation}, {arrived}/{len(self._spans)} spans)"

    @property
    def is_complete(self) -> bool:
        """Whether every span has arrived."""
        return self._missing_count == 0

    def check(self, header: ChunkHeader) -> ChunkFault | None:
        """Tells what is wrong with a chunk before its bytes are touched, or None."""
        if (header.generation, header.token) != (self.generation, self.token):
            return ChunkFault.NOT_GRANTED
        if header.span >= len(self._spans):
            return ChunkFault.WRONG_SPAN
        span = self._spans[header.span]
        if (header.offset, header.length) != (span.offset, span.length):
            return ChunkFault.WRONG_SPAN
        return ChunkFault.REPEATED if self._arrived[header.span] else None

    def mark(self, span_index: int) -> None:
        """Notes that a checked span's bytes lie in their place."""
        self._arrived[span_index] = 1
        self._missing_count -= 1
        self.received_bytes += self._spans[span_index].length

    def first_missing(self) -> tuple[tuple[int, int], ...]:
        """Returns as many of the missing runs as fit a message; what is sent for them leads to the next."""
        return tuple(itertools.islice(self.missing(), _MAX_RUNS))

    def missing(self) -> Iterator[tuple[int, int]]:
        """Yields (first, count) runs of spans that have not arrived."""
        first = self._arrived.find(0)
        while first >= 0:
            end = self._arrived.find(1, first)
            end = len(self._arrived) if end < 0 else end
            yield first, end - first
            first = self._arrived.find(0, end)
