"""What a link carries, by a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.orchestrator_client.link_rate import LinkRate
from forebay.wire import MIB

BUFFERED = 16
WINDOW = 8


class Link:
    """A sending of chunks of a MiB."""

    def __init__(self) -> None:
        self.rate = LinkRate()
        self.now = 100.0
        self.rate.begin()

    def sends(self, count: int, each_s: float, *, waits: bool) -> float | None:
        """Sends chunks, each of which takes a time; returns the estimate in MiB a second."""
        for _ in range(count):
            self.now += each_s
            self.rate.sent(MIB, has_waited=waits, now=self.now)
        return self.mib_per_s

    @property
    def mib_per_s(self) -> float | None:
        rate = self.rate.bytes_per_s
        return None if rate is None else rate / MIB


def filled() -> Link:
    """Returns a link whose buffers are full."""
    link = Link()
    link.sends(BUFFERED, 0.001, waits=False)
    return link


def test_before_anything_was_sent_nothing_is_known() -> None:
    assert LinkRate().bytes_per_s is None
    assert repr(LinkRate()) == "LinkRate(None)"


@pytest.mark.parametrize("waits", [False, True])
def test_what_buffers_take_says_nothing(waits: bool) -> None:
    link = Link()
    assert link.sends(BUFFERED, 0.001, waits=waits) is None
    assert link.sends(WINDOW - 1, 0.001, waits=waits) is None
    assert link.sends(1, 0.001, waits=waits) == pytest.approx(1000.0)


def test_each_sending_fills_the_buffers_anew() -> None:
    link = Link()
    for _ in range(10):
        link.rate.begin()
        assert link.sends(BUFFERED + WINDOW - 1, 0.001, waits=True) is None


def test_a_sending_that_begins_keeps_what_was_known_and_counts_nothing_of_before() -> None:
    link = filled()
    assert link.sends(WINDOW, 0.1, waits=True) == pytest.approx(10.0)
    link.sends(WINDOW - 1, 9.0, waits=True)
    link.rate.begin()
    link.sends(BUFFERED, 9.0, waits=True)
    assert link.sends(WINDOW - 1, 0.05, waits=True) == pytest.approx(10.0)
    assert link.sends(1, 0.05, waits=True) == pytest.approx(20.0)


def test_while_the_sender_waits_the_link_carries_what_leaves() -> None:
    link = filled()
    for each_s in (0.1, 0.01, 1.0, 0.02):
        assert link.sends(WINDOW, each_s, waits=True) == pytest.approx(1 / each_s)


def test_one_wait_in_a_window_is_enough() -> None:
    link = filled()
    link.sends(WINDOW, 0.001, waits=True)
    link.sends(WINDOW // 2, 0.1, waits=False)
    link.sends(1, 0.1, waits=True)
    assert link.sends(WINDOW // 2 - 1, 0.1, waits=False) == pytest.approx(10.0)


def test_a_window_without_a_wait_only_raises_the_estimate() -> None:
    link = filled()
    assert link.sends(WINDOW, 0.1, waits=False) == pytest.approx(10.0)
    assert link.sends(WINDOW, 1.0, waits=False) == pytest.approx(10.0)
    assert link.sends(WINDOW, 0.01, waits=False) == pytest.approx(100.0)
    assert link.sends(WINDOW, 0.5, waits=True) == pytest.approx(2.0)
    assert link.sends(WINDOW, 0.9, waits=False) == pytest.approx(2.0)


def test_what_waits_in_one_window_does_not_count_in_the_next() -> None:
    link = filled()
    assert link.sends(WINDOW, 0.1, waits=True) == pytest.approx(10.0)
    assert link.sends(WINDOW, 0.2, waits=False) == pytest.approx(10.0)


def test_the_time_in_which_the_buffers_filled_does_not_count() -> None:
    link = Link()
    link.sends(BUFFERED, 50.0, waits=True)
    assert link.sends(WINDOW, 0.1, waits=True) == pytest.approx(10.0)


def test_a_clock_that_stands_still_ends_no_window() -> None:
    link = filled()
    assert link.sends(5 * WINDOW, 0.0, waits=True) is None
    assert link.sends(1, 1.0, waits=True) == pytest.approx(5.0 * WINDOW + 1)


@given(sizes=st.lists(st.integers(1, 3 * MIB), max_size=60), each_s=st.floats(1e-4, 10.0))
def test_a_link_that_always_carries_the_same_is_seen_as_it_is(sizes: list[int], each_s: float) -> None:
    rate, now = LinkRate(), 0.0
    rate.begin()
    for nbytes in sizes:
        now += nbytes * each_s / MIB
        rate.sent(nbytes, has_waited=True, now=now)
    assert rate.bytes_per_s is None or rate.bytes_per_s == pytest.approx(MIB / each_s)
    if sum(sizes) >= (BUFFERED + WINDOW + 6) * MIB:
        assert rate.bytes_per_s is not None
