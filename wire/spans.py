"""How a slot's body is laid out and cut into chunks.

A chunk carries one span of the body. Large leaves are cut into spans of one chunk each; neighbouring small leaves
share one, so that a tree of a thousand small arrays costs a few messages and not a thousand.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence

LEAF_ALIGNMENT = 64
"""Bytes at whose multiples leaves start: a cache line, and what device transfers like."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A piece of a slot's body that one chunk carries.

    Attributes:
        offset: Byte offset in the body.
        length: Bytes, at most one chunk.
        first_leaf: Index of the leaf at its start.
        leaf_count: Leaves that it touches; over 1 only for whole small leaves, with the gaps between them.
    """

    offset: int
    length: int
    first_leaf: int
    leaf_count: int


class SpanTable(Sequence[Span]):
    """The spans of a body in order of offset.

    Holds one entry for each large leaf and each pack of small ones; a span is made when it is asked for. A body of
    5 GB has five thousand spans, and most are asked for once.

    Args:
        pieces: What is cut, in order: one large leaf, or small leaves that share a span.
        chunk_bytes: Bytes that one span has at most.
    """

    def __init__(self, pieces: Sequence[Span], chunk_bytes: int) -> None:
        self.total_bytes = 0
        self._pieces = pieces
        self._chunk_bytes = chunk_bytes
        self._first: list[int] = []
        self._count = 0
        for piece in pieces:
            self._first.append(self._count)
            self._count += -(-piece.length // chunk_bytes)
            self.total_bytes += piece.length

    def __repr__(self) -> str:
        return f"SpanTable({self._count} spans, {self.total_bytes} bytes)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpanTable):
            return NotImplemented
        return (self._pieces, self._chunk_bytes) == (other._pieces, other._chunk_bytes)

    __hash__ = None  # type: ignore[assignment] # compared by what it is made of, like a list

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Span:  # type: ignore[override] # a slice is of no use
        if not -self._count <= index < self._count:
            raise IndexError(index)
        index %= self._count
        number = bisect.bisect_right(self._first, index) - 1
        piece = self._pieces[number]
        start = (index - self._first[number]) * self._chunk_bytes
        length = min(self._chunk_bytes, piece.length - start)
        return Span(piece.offset + start, length, piece.first_leaf, piece.leaf_count)

    def __iter__(self) -> Iterator[Span]:
        return (self[index] for index in range(self._count))


def place_leaves(leaf_bytes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Places leaves one after another at aligned offsets.

    Args:
        leaf_bytes: Decoded bytes of each leaf.

    Returns:
        The offset of each leaf in the body, and the body's bytes.
    """
    offsets: list[int] = []
    end = 0
    for nbytes in leaf_bytes:
        offset = -(-end // LEAF_ALIGNMENT) * LEAF_ALIGNMENT
        offsets.append(offset)
        end = offset + nbytes
    return tuple(offsets), end


def cut_spans(leaf_bytes: Sequence[int], offsets: Sequence[int], chunk_bytes: int) -> SpanTable:
    """Cuts a body into the spans that chunks carry.

    Args:
        leaf_bytes: Decoded bytes of each leaf.
        offsets: From `place_leaves`.
        chunk_bytes: Bytes that one chunk carries at most.

    Returns:
        Spans in order of offset; every byte of every leaf is in exactly one.
    """
    small = chunk_bytes // 4
    pieces: list[Span] = []
    shared: Span | None = None
    for leaf, (nbytes, offset) in enumerate(zip(leaf_bytes, offsets, strict=True)):
        if nbytes == 0:
            continue
        if nbytes > small:
            shared = None
            pieces.append(Span(offset, nbytes, leaf, 1))
        elif shared is not None and offset + nbytes - shared.offset <= chunk_bytes:
            first = shared.first_leaf
            shared = Span(shared.offset, offset + nbytes - shared.offset, first, leaf - first + 1)
            pieces[-1] = shared
        else:
            shared = Span(offset, nbytes, leaf, 1)
            pieces.append(shared)
    return SpanTable(pieces, chunk_bytes)
