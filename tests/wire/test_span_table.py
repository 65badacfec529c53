"""A table of spans is the list that cutting every piece would make, and holds next to nothing of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire import MIB, Span, SpanTable, cut_spans, place_leaves

GB = 1000**3

lengths = st.lists(st.integers(1, 40), max_size=12)
chunks = st.integers(1, 15)


def pieces_of(lengths: list[int], gap: int = 3) -> list[Span]:
    starts = itertools.accumulate((length + gap for length in lengths), initial=0)
    return [
        Span(start, length, leaf, 1) for leaf, (start, length) in enumerate(zip(starts, lengths, strict=False))
    ]


def cut(pieces: list[Span], chunk_bytes: int) -> list[Span]:
    """Cuts the plain way: one piece after another, one chunk after another."""
    spans = []
    for piece in pieces:
        for start in range(0, piece.length, chunk_bytes):
            length = min(chunk_bytes, piece.length - start)
            spans.append(Span(piece.offset + start, length, piece.first_leaf, piece.leaf_count))
    return spans


@given(lengths, chunks)
def test_a_table_is_the_list_of_its_spans(lengths: list[int], chunk_bytes: int) -> None:
    pieces = pieces_of(lengths)
    table, spans = SpanTable(pieces, chunk_bytes), cut(pieces, chunk_bytes)
    assert len(table) == len(spans)
    assert list(table) == spans
    assert list(reversed(table)) == spans[::-1]
    assert [table[index] for index in range(-len(spans), len(spans))] == spans + spans


@given(lengths, chunks, st.integers(0, 1 << 70))
def test_there_is_nothing_before_the_first_or_behind_the_last(
    lengths: list[int], chunk_bytes: int, far: int
) -> None:
    table = SpanTable(pieces_of(lengths), chunk_bytes)
    for index in (len(table), len(table) + far, -len(table) - 1, -len(table) - 1 - far):
        with pytest.raises(IndexError):
            table[index]


@given(lengths, chunks)
def test_its_bytes_are_those_of_its_spans(lengths: list[int], chunk_bytes: int) -> None:
    table = SpanTable(pieces_of(lengths), chunk_bytes)
    assert table.total_bytes == sum(span.length for span in table) == sum(lengths)
    assert all(0 < span.length <= chunk_bytes for span in table)


@given(lengths, chunks)
def test_it_is_a_sequence(lengths: list[int], chunk_bytes: int) -> None:
    pieces = pieces_of(lengths)
    table, spans = SpanTable(pieces, chunk_bytes), cut(pieces, chunk_bytes)
    assert bool(table) == bool(spans)
    for index, span in enumerate(spans):
        assert span in table
        assert table.index(span) == index
        assert table.count(span) == 1
    assert Span(1 << 40, 1, 0, 1) not in table


@given(lengths, chunks, lengths, chunks)
def test_two_are_equal_if_they_were_cut_from_the_same_in_the_same_way(
    lengths: list[int], chunk_bytes: int, others: list[int], other_chunk_bytes: int
) -> None:
    table = SpanTable(pieces_of(lengths), chunk_bytes)
    assert table == SpanTable(pieces_of(lengths), chunk_bytes)
    other = SpanTable(pieces_of(others), other_chunk_bytes)
    assert (table == other) == ((lengths, chunk_bytes) == (others, other_chunk_bytes))


def test_a_table_equals_nothing_else_and_is_no_key() -> None:
    table = SpanTable(pieces_of([10]), 4)
    assert table != list(table)
    assert table != "a table"
    with pytest.raises(TypeError, match="unhashable"):
        hash(table)


def test_a_piece_of_several_leaves_is_one_span_that_names_them_all() -> None:
    shared = Span(128, 500, 3, 4)
    assert list(SpanTable([Span(0, 100, 0, 3), shared], 500)) == [Span(0, 100, 0, 3), shared]


# --- large ones ---


def table_of(*leaf_bytes: int) -> SpanTable:
    offsets, _ = place_leaves(leaf_bytes)
    return cut_spans(leaf_bytes, offsets, MIB)


def held(table: SpanTable) -> int:
    """Counts the entries of whatever a table holds."""
    return sum(len(value) for value in vars(table).values() if hasattr(value, "__len__"))


def test_a_leaf_of_five_gigabytes_needs_no_more_entries_than_one_of_a_megabyte() -> None:
    large, small = table_of(5 * GB), table_of(MIB)
    assert repr(large) == "SpanTable(4769 spans, 5000000000 bytes)"
    assert repr(small) == "SpanTable(1 spans, 1048576 bytes)"
    assert held(large) == held(small) <= 4


def test_a_body_of_five_gigabytes_needs_entries_for_its_leaves_and_not_for_its_spans() -> None:
    table = table_of(5 * GB, 100, 200, 5 * GB, *[64] * 1000)
    assert len(table) == 2 * 4769 + 2
    assert held(table) <= 2 * 4


def test_a_span_far_inside_of_a_large_body_is_where_it_belongs() -> None:
    table = table_of(5 * GB, 100, 5 * GB)
    last = 5 * GB - 4768 * MIB
    assert table[0] == Span(0, MIB, 0, 1)
    assert table[4767] == Span(4767 * MIB, MIB, 0, 1)
    assert table[4768] == Span(4768 * MIB, last, 0, 1)
    assert table[4769] == Span(5 * GB, 100, 1, 1)
    assert table[-1] == Span(5 * GB + 128 + 4768 * MIB, last, 2, 1)
    assert table.total_bytes == 10 * GB + 100
