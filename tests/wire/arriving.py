"""Micro-batches of a few short spans, and the headers of their chunks."""

from __future__ import annotations

from typing import Any

from forebay.wire import Arrivals, ChunkHeader, Span, SpanTable

LENGTH = 10


def arrivals_of(spans: int = 4, **more: Any) -> Arrivals:
    fields = {"slot": 2, "generation": 5, "token": 7, **more}
    pieces = [Span(0, LENGTH * spans - 1, 0, 1)] if spans else []
    return Arrivals(**fields, spans=SpanTable(pieces, LENGTH))


def header_of(arrivals: Arrivals, span: int) -> ChunkHeader:
    """Returns the header that a sender makes for a span of `arrivals_of`; the last one is a byte shorter."""
    names = {"slot": arrivals.slot, "generation": arrivals.generation, "token": arrivals.token}
    length = min(LENGTH, arrivals.total_bytes - span * LENGTH)
    return ChunkHeader(**names, span=span, length=length, offset=span * LENGTH, checksum=0)
