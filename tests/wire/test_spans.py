from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from forebay.wire import LEAF_ALIGNMENT, MIB, cut_spans, place_leaves

sizes = st.lists(st.sampled_from([0, 1, 63, 64, 65]) | st.integers(0, 3000), max_size=40)
chunks = st.sampled_from([1, 3, 64, 100, 256, 1024]) | st.integers(1, 5000)


@given(sizes, chunks)
def test_every_byte_of_every_leaf_is_in_exactly_one_span(leaf_bytes: list[int], chunk_bytes: int) -> None:
    offsets, body_bytes = place_leaves(leaf_bytes)
    times_carried = bytearray(body_bytes)
    for span in cut_spans(leaf_bytes, offsets, chunk_bytes):
        for byte in range(span.offset, span.offset + span.length):
            times_carried[byte] += 1
    for offset, nbytes in zip(offsets, leaf_bytes, strict=True):
        assert set(times_carried[offset : offset + nbytes]) <= {1}
    assert set(times_carried) <= {0, 1}


@given(sizes, chunks)
def test_spans_are_in_order_within_a_chunk_and_within_the_body(leaf_bytes: list[int], chunk_bytes: int) -> None:
    offsets, body_bytes = place_leaves(leaf_bytes)
    spans = cut_spans(leaf_bytes, offsets, chunk_bytes)
    assert all(0 < span.length <= chunk_bytes for span in spans)
    assert all(one.offset + one.length <= other.offset for one, other in itertools.pairwise(spans))
    assert not spans or spans[-1].offset + spans[-1].length <= body_bytes


@given(sizes, chunks)
def test_a_span_names_the_leaves_that_it_touches(leaf_bytes: list[int], chunk_bytes: int) -> None:
    offsets, _ = place_leaves(leaf_bytes)
    for span in cut_spans(leaf_bytes, offsets, chunk_bytes):
        touched = [
            leaf
            for leaf, (offset, nbytes) in enumerate(zip(offsets, leaf_bytes, strict=True))
            if nbytes and offset < span.offset + span.length and span.offset < offset + nbytes
        ]
        assert touched[0] == span.first_leaf
        assert touched[-1] == span.first_leaf + span.leaf_count - 1
        if span.leaf_count > 1:
            assert span.offset == offsets[touched[0]]
            assert span.offset + span.length == offsets[touched[-1]] + leaf_bytes[touched[-1]]


@given(sizes)
def test_leaves_start_at_cache_lines_in_order_and_do_not_overlap(leaf_bytes: list[int]) -> None:
    offsets, body_bytes = place_leaves(leaf_bytes)
    assert all(offset % LEAF_ALIGNMENT == 0 for offset in offsets)
    ends = [offset + nbytes for offset, nbytes in zip(offsets, leaf_bytes, strict=True)]
    assert all(end <= offset < end + LEAF_ALIGNMENT for end, offset in zip(ends, offsets[1:], strict=False))
    assert body_bytes == (ends[-1] if ends else 0)


def test_alignment_is_that_of_a_cache_line() -> None:
    assert LEAF_ALIGNMENT == 64
    assert place_leaves([1, 64, 65, 0, 1]) == ((0, 64, 128, 256, 256), 257)


def test_a_thousand_tiny_leaves_share_one_chunk() -> None:
    leaf_bytes = [40] * 1000
    offsets, _ = place_leaves(leaf_bytes)
    (span,) = cut_spans(leaf_bytes, offsets, MIB)
    assert (span.first_leaf, span.leaf_count) == (0, 1000)


def test_large_leaves_are_cut_at_chunks_and_small_ones_between_them_share() -> None:
    leaf_bytes = [2500, 10, 10, 1000, 10, 0, 10]
    offsets, _ = place_leaves(leaf_bytes)
    spans = cut_spans(leaf_bytes, offsets, 1000)
    assert [(span.length, span.first_leaf, span.leaf_count) for span in spans] == [
        *((1000, 0, 1), (1000, 0, 1), (500, 0, 1)),
        (74, 1, 2),
        (1000, 3, 1),
        (74, 4, 3),
    ]


def test_sharing_stops_before_a_chunk_is_full() -> None:
    leaf_bytes = [64] * 20
    offsets, _ = place_leaves(leaf_bytes)
    assert [span.leaf_count for span in cut_spans(leaf_bytes, offsets, 256)] == [4] * 5
    assert [span.leaf_count for span in cut_spans(leaf_bytes, offsets, 300)] == [4] * 5


def test_nothing_is_sent_for_a_tree_without_bytes() -> None:
    assert place_leaves([]) == ((), 0)
    assert list(cut_spans([0, 0], *place_leaves([0, 0])[:1], 100)) == []
