"""A wire whose rate follows a trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.benchmarks.paced_wire import TracedPace
from forebay.wire import UsageError

TRACE_S = (9.0, 16.0, 4.0)
PAYLOAD_BYTES = 1000


def test_each_micro_batch_takes_its_own_time_and_the_trace_starts_over() -> None:
    pace = TracedPace(TRACE_S, PAYLOAD_BYTES)
    assert [pace.wait_s(PAYLOAD_BYTES, now=100.0) for _ in range(5)] == pytest.approx([9, 25, 29, 38, 54])


def test_bytes_on_both_sides_of_a_border_take_their_part_of_both() -> None:
    pace = TracedPace(TRACE_S, PAYLOAD_BYTES)
    pace.wait_s(900, now=0.0)
    assert pace.wait_s(200, now=100.0) == pytest.approx(0.9 + 1.6)


@given(chunks=st.lists(st.integers(0, 2500), max_size=50))
def test_how_the_bytes_are_cut_makes_no_difference(chunks: list[int]) -> None:
    cut, whole = TracedPace(TRACE_S, PAYLOAD_BYTES), TracedPace(TRACE_S, PAYLOAD_BYTES)
    waits = [cut.wait_s(nbytes, now=0.0) for nbytes in chunks]
    assert max(waits, default=0.0) == pytest.approx(whole.wait_s(sum(chunks), now=0.0))


def test_an_idle_time_does_not_move_the_trace() -> None:
    pace = TracedPace(TRACE_S, PAYLOAD_BYTES)
    pace.wait_s(PAYLOAD_BYTES, now=0.0)
    assert pace.wait_s(PAYLOAD_BYTES, now=5000.0) == pytest.approx(16.0)


@pytest.mark.parametrize("seconds", [(), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_a_trace_without_times_is_an_error(seconds: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="the seconds of each micro-batch"):
        TracedPace(seconds, PAYLOAD_BYTES)


def test_micro_batches_without_bytes_are_an_error() -> None:
    with pytest.raises(UsageError, match="no bytes; got 0; limit 1 or more"):
        TracedPace(TRACE_S, 0)
