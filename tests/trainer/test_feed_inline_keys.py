"""A key that is trained by bytes that a step was given is consumed for the daemon, and trained once."""

from __future__ import annotations

import pytest

from forebay.trainer import StagingQueue, daemon_feed
from forebay.wire import Finished

from .fake_transfer import payload
from .feed_desk import Desk, RecordedLink, feed_of, finished, lend, promoted
from .waiting import WAIT_S


def test_a_key_that_is_trained_inline_is_reported_consumed_at_the_end_of_its_step(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with queue.put(payload("a"), key="a") as batch:
        batch.dispatched()
        assert link.reports == []
    assert link.reports == [Finished(holder="", key="a")]


def test_a_lend_that_comes_after_its_key_was_trained_inline_is_ended_as_consumed_and_not_entered(
    link: RecordedLink, queue: StagingQueue
) -> None:
    queue.put(payload("a"), key="a").close()
    del link.reports[:]
    feed = feed_of(queue)
    feed.lent(lend("a", 4, 2))
    assert queue.keys == ()
    assert link.reports == [finished("a", 4, 2)]
    assert (feed.held(), feed.on_device()) == ((), ())
    assert queue.statistics.staged == 0


def test_a_lend_that_comes_while_its_key_is_trained_inline_is_ended_as_consumed(
    desk: Desk, link: RecordedLink
) -> None:
    origin = desk.feed.inline("a")
    desk.feed.lent(lend("a", 4, 2))
    with desk.changed:
        origin.ended("")
    assert desk.books.keys == ()
    assert finished("a", 4, 2) in link.reports
    assert all(isinstance(report, Finished) and not report.reason for report in link.reports)
    assert desk.feed.held() == ()


def test_a_lend_in_mid_transfer_when_its_key_was_trained_inline_is_ended_as_consumed_when_that_is_over(
    desk: Desk, link: RecordedLink
) -> None:
    origin = desk.feed.inline("a")
    desk.feed.lent(lend("a", 4, 2))
    entry = desk.begin("a")
    entry.origin.read()
    with desk.changed:
        origin.ended("")
    assert desk.books.keys == ()
    assert desk.feed.held() == ((4, 2),)
    assert link.reports == [Finished(holder="", key="a")]
    desk.arrive(entry)
    assert link.reports[1:] == [finished("a", 4, 2)]


def test_the_next_is_asked_for_when_a_lend_is_not_entered_since_its_key_was_trained_inline(
    link: RecordedLink, queue: StagingQueue
) -> None:
    queue.put(payload("a"), key="a").close()
    assert link.last_demand() == (1, (), True)
    feed_of(queue).lent(lend("a"))
    assert link.last_demand() == (2, (), True), "else nothing is lent before the demand is repeated"


def test_the_next_is_asked_for_when_an_inline_step_ends_what_was_lent_for_its_key(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with queue.put(payload("a"), key="a"):
        feed_of(queue).lent(lend("a"))
    assert queue.keys == ()
    assert link.last_demand() == (2, (), True), "else nothing is lent before the demand is repeated"


def test_an_inline_step_that_failed_leaves_what_was_lent_for_its_key_meanwhile(
    desk: Desk, link: RecordedLink
) -> None:
    origin = desk.feed.inline("a")
    desk.feed.lent(lend("a", 4, 2))
    origin.ended("the trainer raised ValueError")
    assert desk.books.keys == ("a",)
    assert link.reports == []
    desk.promote("a")
    desk.train("a")
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2)]


def test_an_inline_step_that_raises_reports_nothing_and_its_key_may_be_lent_later(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with pytest.raises(ZeroDivisionError), queue.put(payload("a"), key="a"):
        raise ZeroDivisionError
    assert link.reports == []
    feed_of(queue).lent(lend("a", 4, 2))
    with queue.take(timeout_s=WAIT_S) as batch:
        assert batch.key == "a"
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2)]


def test_a_payload_without_a_key_is_reported_to_nobody(link: RecordedLink, queue: StagingQueue) -> None:
    queue.put(payload("a")).close()
    assert link.reports == []


def test_a_lent_entry_that_a_step_has_other_bytes_for_is_dropped_and_told_once(
    link: RecordedLink, queue: StagingQueue
) -> None:
    feed_of(queue).lent(lend("a", 4, 2))
    with queue._parts.changed:
        assert queue._parts.changed.wait_for(lambda: queue.statistics.on_device == 1, WAIT_S)
    with queue.put(payload("a", more=1), key="a") as batch:
        assert batch.tree["more"] == 1
    about = [report for report in link.reports if isinstance(report, Finished) and report.attempt]
    assert about == [finished("a", generation=2, reason="the step was given other bytes for its key")]
    del link.reports[:]
    feed_of(queue).lent(lend("a", 4, 3))
    assert queue.keys == (), "else it would be trained twice"
    assert link.reports == [finished("a", 4, 3)]


def test_no_more_keys_that_were_trained_inline_are_remembered_than_a_daemon_remembers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_feed, "_REMEMBERED_KEYS", 2)
    for key in "abc":
        desk.feed.inline(key).ended("")
    for slot, key in enumerate("abc"):
        desk.feed.lent(lend(key, slot))
    assert desk.books.keys == ("a",)
