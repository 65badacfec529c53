from __future__ import annotations

from forebay.wire import LogLimit


def test_the_first_few_of_a_window_are_written_and_the_rest_is_counted() -> None:
    limit = LogLimit(count=3, window_s=10.0)
    assert [limit.admits("refuse", float(second)) for second in range(6)] == [True] * 3 + [False] * 3
    assert limit.take_left_out(9.9) == []
    assert limit.next_deadline() == 10.0
    assert limit.take_left_out(10.0) == [("refuse", 3)]
    assert limit.next_deadline() is None
    assert limit.admits("refuse", 10.0)


def test_one_event_takes_nothing_from_another() -> None:
    limit = LogLimit(count=1)
    assert limit.admits("a", 0.0)
    assert not limit.admits("a", 0.0)
    assert limit.admits("b", 0.0)


def test_what_was_never_left_out_is_not_told() -> None:
    limit = LogLimit(count=1, window_s=1.0)
    limit.admits("a", 0.0)
    assert limit.next_deadline() is None
    assert limit.take_left_out(5.0) == []


def test_names_without_end_take_bounded_memory() -> None:
    limit = LogLimit(count=1, max_events=10)
    for number in range(1000):
        limit.admits(f"event {number}", 0.0)
    assert len(limit._windows) == 10
