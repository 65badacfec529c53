"""Which chunks may be written, by whom, and when nobody writes any more; also from many threads at once."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.wire import CODECS, Arrivals, ChunkFault, ChunkHeader, Incoming

from .arriving import LENGTH, arrivals_of, header_of

PATIENCE_S = 60.0


def bring(arrivals: Arrivals, *spans: int, now: float = 1.0) -> None:
    for span in spans:
        assert arrivals.claim(header_of(arrivals, span)) is None
        arrivals.settle(header_of(arrivals, span), arrived=True, now=now)


def what_moves(arrivals: Arrivals) -> tuple[object, ...]:
    now = (arrivals.received_bytes, arrivals.last_at, arrivals.is_complete, arrivals.is_written_to)
    return (*now, list(arrivals.missing()), repr(arrivals))


# --- one micro-batch ---


def test_what_nothing_has_arrived_of_misses_all() -> None:
    arrivals = arrivals_of()
    assert list(arrivals.missing()) == [(0, 4)]
    assert (arrivals.received_bytes, arrivals.total_bytes, arrivals.last_at) == (0, 39, 0.0)
    assert (arrivals.is_complete, arrivals.is_written_to) == (False, False)


def test_a_span_counts_when_it_is_settled_and_not_when_it_is_claimed() -> None:
    arrivals = arrivals_of()
    header = header_of(arrivals, 1)
    assert arrivals.claim(header) is None
    assert (arrivals.received_bytes, list(arrivals.missing()), arrivals.is_written_to) == (0, [(0, 4)], True)
    arrivals.settle(header, arrived=True, now=3.0)
    assert (arrivals.received_bytes, arrivals.last_at) == (LENGTH, 3.0)
    assert (list(arrivals.missing()), arrivals.is_written_to) == ([(0, 1), (2, 2)], False)


def test_a_span_whose_bytes_were_wrong_is_as_if_it_had_never_come() -> None:
    arrivals = arrivals_of()
    before = what_moves(arrivals)
    for _ in range(3):
        assert arrivals.claim(header_of(arrivals, 1)) is None
        arrivals.settle(header_of(arrivals, 1), arrived=False, now=3.0)
        assert what_moves(arrivals) == before
    bring(arrivals, 1)


def test_the_last_span_makes_it_complete() -> None:
    arrivals = arrivals_of()
    for now, span in enumerate((3, 0, 2, 1), start=1):
        assert not arrivals.is_complete
        bring(arrivals, span, now=float(now))
    assert (arrivals.is_complete, arrivals.received_bytes, arrivals.last_at) == (True, 39, 4.0)
    assert list(arrivals.missing()) == []


def test_what_has_no_spans_is_complete_from_the_start() -> None:
    arrivals = arrivals_of(0)
    assert (arrivals.is_complete, arrivals.total_bytes, list(arrivals.missing())) == (True, 0, [])


def test_a_span_is_granted_once_while_it_is_claimed_and_once_it_has_arrived() -> None:
    arrivals = arrivals_of()
    header = header_of(arrivals, 1)
    arrivals.claim(header)
    before = what_moves(arrivals)
    assert arrivals.claim(header) is ChunkFault.REPEATED
    assert what_moves(arrivals) == before
    arrivals.settle(header, arrived=True, now=1.0)
    assert arrivals.claim(header) is ChunkFault.REPEATED
    assert (arrivals.received_bytes, arrivals.is_written_to) == (LENGTH, False)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        *(({"generation": value}, ChunkFault.NOT_GRANTED) for value in (0, 4, 6, (1 << 64) - 1)),
        *(({"token": value}, ChunkFault.NOT_GRANTED) for value in (0, 6, 8, (1 << 64) - 1)),
        *(({"span": value}, ChunkFault.WRONG_SPAN) for value in (0, 2, 3, 4, (1 << 32) - 1)),
        *(({"offset": value}, ChunkFault.WRONG_SPAN) for value in (0, 9, 11, (1 << 64) - 1)),
        *(({"length": value}, ChunkFault.WRONG_SPAN) for value in (0, 9, 11, (1 << 32) - 1)),
        *(({"codec": value}, ChunkFault.WRONG_CODEC) for value in (len(CODECS), 255)),
        ({"token": 0, "span": 99, "codec": 99}, ChunkFault.NOT_GRANTED),
        ({"span": 99, "codec": 99}, ChunkFault.WRONG_SPAN),
    ],
)
def test_a_chunk_that_is_not_exactly_what_was_granted_moves_nothing(
    change: dict[str, int], fault: ChunkFault
) -> None:
    arrivals = arrivals_of()
    bring(arrivals, 2)
    before = what_moves(arrivals)
    assert arrivals.claim(dataclasses.replace(header_of(arrivals, 1), **change)) is fault
    assert what_moves(arrivals) == before


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_a_chunk_may_travel_in_any_codec_that_there_is(codec: int) -> None:
    arrivals = arrivals_of()
    assert arrivals.claim(dataclasses.replace(header_of(arrivals, 1), codec=codec)) is None


def test_a_grant_names_as_many_missing_runs_as_fit_and_what_has_arrived() -> None:
    arrivals = arrivals_of(5000)
    bring(arrivals, *range(1, 5000, 2))
    granted = arrivals.granted(request_id=3, attempt="a", chunk_bytes=LENGTH)
    assert granted.missing == tuple((span, 1) for span in range(0, 2048, 2))
    assert (granted.id, granted.attempt, granted.chunk_bytes) == (3, "a", LENGTH)
    assert (granted.slot, granted.generation, granted.token) == (2, 5, 7)
    assert granted.received_bytes == arrivals.received_bytes == 2500 * LENGTH - 1


# --- all that is on its way ---


def claimed(incoming: Incoming, arrivals: Arrivals, span: int) -> ChunkHeader:
    header = header_of(arrivals, span)
    assert incoming.claim(header) is arrivals
    return header


def test_only_what_is_open_is_wanted() -> None:
    incoming, arrivals = Incoming(), arrivals_of()
    assert incoming.claim(header_of(arrivals, 0)) is ChunkFault.NOT_GRANTED
    incoming.open(arrivals)
    assert incoming.claim(dataclasses.replace(header_of(arrivals, 0), slot=3)) is ChunkFault.NOT_GRANTED
    claimed(incoming, arrivals, 0)
    incoming.close(arrivals)
    assert incoming.claim(header_of(arrivals, 1)) is ChunkFault.NOT_GRANTED


def test_an_old_one_that_is_closed_does_not_close_the_newer_one_of_its_number() -> None:
    incoming, old, new = Incoming(), arrivals_of(), arrivals_of(generation=6)
    incoming.open(old)
    incoming.close(old)
    incoming.open(new)
    incoming.close(old)
    claimed(incoming, new, 0)
    assert incoming.claim(header_of(old, 1)) is ChunkFault.NOT_GRANTED


def test_only_the_last_chunk_completes_and_only_if_it_is_right() -> None:
    incoming, arrivals = Incoming(), arrivals_of(2)
    incoming.open(arrivals)
    first = claimed(incoming, arrivals, 0)
    last = claimed(incoming, arrivals, 1)
    assert not incoming.settle(arrivals, first, None, 1.0)
    assert not incoming.settle(arrivals, last, ChunkFault.WRONG_CHECKSUM, 2.0)
    assert arrivals.last_at == 1.0
    assert incoming.settle(arrivals, claimed(incoming, arrivals, 1), None, 3.0)
    assert incoming.faults() == {}, "those who throw a chunk away count it"


def test_chunks_that_were_thrown_away_are_counted_by_reason() -> None:
    incoming = Incoming()
    for fault, times in ((ChunkFault.REPEATED, 2), (ChunkFault.MALFORMED, 1)):
        for _ in range(times):
            incoming.throw_away(fault)
    assert incoming.faults() == {ChunkFault.REPEATED: 2, ChunkFault.MALFORMED: 1}


def test_nobody_waits_for_what_nobody_writes_to() -> None:
    incoming, arrivals = Incoming(), arrivals_of()
    incoming.open(arrivals)
    incoming.close(arrivals)
    assert incoming.wait_until_left(arrivals, 0.0)


@pytest.mark.parametrize("fault", [None, ChunkFault.WRONG_CHECKSUM])
def test_what_was_closed_is_left_when_the_last_claim_from_before_is_settled(fault: ChunkFault | None) -> None:
    incoming, arrivals = Incoming(), arrivals_of()
    incoming.open(arrivals)
    first, second = claimed(incoming, arrivals, 0), claimed(incoming, arrivals, 2)
    incoming.close(arrivals)
    assert not incoming.wait_until_left(arrivals, 0.0)
    left = threading.Event()

    def wait() -> None:
        if incoming.wait_until_left(arrivals, threading.TIMEOUT_MAX):
            left.set()

    threading.Thread(target=wait, daemon=True).start()
    incoming.settle(arrivals, first, fault, 1.0)
    assert not incoming.wait_until_left(arrivals, 0.0)
    assert not left.is_set()
    incoming.settle(arrivals, second, fault, 1.0)
    assert left.wait(PATIENCE_S), "nobody told the one who waits"


def test_of_many_threads_that_claim_the_same_spans_each_span_is_granted_to_one() -> None:
    spans, threads = 500, 8
    incoming, arrivals, start = Incoming(), arrivals_of(spans), threading.Barrier(threads)
    incoming.open(arrivals)

    def claim_all(number: int) -> tuple[list[int], int]:
        start.wait(PATIENCE_S)
        mine, completed = [], 0
        for span in itertools.chain(range(number * 31, spans), range(number * 31)):
            header = header_of(arrivals, span)
            got = incoming.claim(header)
            if isinstance(got, ChunkFault):
                incoming.throw_away(got)
            else:
                mine.append(span)
                completed += incoming.settle(got, header, None, 1.0)
        return mine, completed

    with ThreadPoolExecutor(threads) as pool:
        outcomes = list(pool.map(claim_all, range(threads)))
    assert sorted(span for mine, _ in outcomes for span in mine) == list(range(spans))
    assert sum(completed for _, completed in outcomes) == 1
    assert incoming.faults() == {ChunkFault.REPEATED: (threads - 1) * spans}
    assert (arrivals.is_complete, arrivals.received_bytes) == (True, arrivals.total_bytes)


def test_what_was_received_is_counted_once_it_is_right() -> None:
    incoming, arrivals = Incoming(), arrivals_of(2)
    incoming.open(arrivals)
    incoming.settle(arrivals, claimed(incoming, arrivals, 0), ChunkFault.DAMAGED, 1.0, 7)
    assert not any(any(received) for received in incoming.received().values())
    first, last = claimed(incoming, arrivals, 0), claimed(incoming, arrivals, 1)
    incoming.settle(arrivals, first, None, 1.0, 7)
    assert incoming.received()["raw"] == (1, 7, first.length)
    incoming.settle(arrivals, last, None, 1.0)
    assert incoming.received()["raw"] == (2, 7 + last.length, first.length + last.length)
