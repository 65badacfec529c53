"""How a slot's body is laid out and cut into chunks.

A chunk carries one span of the body. Large leaves are cut into spans of one chunk each; neighbouring small leaves
share one, so that a tree of a thousand small arrays costs a few messages and not a thousand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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


def cut_spans(leaf_bytes: Sequence[int], offsets: Sequence[int], chunk_bytes: int) -> tuple[Span, ...]:
    """Cuts a body into the spans that chunks carry.

    Args:
        leaf_bytes: Decoded bytes of each leaf.
        offsets: From `place_leaves`.
        chunk_bytes: Bytes that one chunk carries at most.

    Returns:
        Spans in order of offset; every byte of every leaf is in exactly one.
    """
    small = chunk_bytes // 4
    spans: list[Span] = []
    shared: Span | None = None
    for leaf, (nbytes, offset) in enumerate(zip(leaf_bytes, offsets, strict=True)):
        if nbytes == 0:
            continue
        if nbytes > small:
            shared = None
            spans.extend(
                Span(offset + start, min(chunk_bytes, nbytes - start), leaf, 1)
                for start in range(0, nbytes, chunk_bytes)
            )
        elif shared is not None and offset + nbytes - shared.offset <= chunk_bytes:
            first = shared.first_leaf
            shared = Span(shared.offset, offset + nbytes - shared.offset, first, leaf - first + 1)
            spans[-1] = shared
        else:
            shared = Span(offset, nbytes, leaf, 1)
            spans.append(shared)
    return tuple(spans)
