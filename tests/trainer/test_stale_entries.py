"""What is stale does not come to the device: it is dropped with its reason, and nobody waits for it."""

from __future__ import annotations

import logging

import msgspec
import pytest

from forebay.trainer import StagingQueue
from forebay.trainer.entry import Entry
from forebay.trainer.entry_states import EntryState
from forebay.trainer.events import StageStale
from forebay.wire import Finished, KeyGone, Lend, MicroBatchState, Stale, StaleError

from .books_desk import Desk as Books
from .books_desk import Heard, heard
from .feed_desk import Desk, RecordedLink, feed_of, finished, lend, promoted, transfer_of
from .waiting import WAIT_S, Call, Watch

REASON = "stale: policy version 1 is 3 behind 4, limit 2"


def stale(slot: int = 0, generation: int = 1) -> Stale:
    return Stale(slot=slot, generation=generation, reason=REASON)


def finished_stale(key: str, slot: int = 0) -> Finished:
    return msgspec.structs.replace(finished(key, slot, reason=REASON), stale=True)


def expired(key: str, slot: int = 0) -> Lend:
    return msgspec.structs.replace(lend(key, slot), expires_s=0.0)


# --- the books ---


def test_an_entry_is_stale_from_its_moment_on_unless_it_was_on_the_device() -> None:
    entry = Entry("a", Heard(), expires_at=5.0)
    assert entry.why_stale(4.9) == ""
    assert entry.why_stale(5.0) == "stale: its time was over 0.0 s before it could be promoted"
    entry.stale_reason = REASON
    assert entry.why_stale(0.0) == REASON
    entry.was_transferred = True
    assert entry.why_stale(1000.0) == ""
    assert Entry("b", Heard()).why_stale(1e12) == ""


def test_one_that_waits_on_the_host_is_dropped_and_the_next_has_its_turn() -> None:
    desk = Books()
    first, second, _ = desk.add("a", "b", "c")
    desk.books.drop_stale(first, REASON)
    assert (heard(first), first.state) == ([f"ended: {REASON}"], EntryState.GONE)
    assert desk.keys() == ("b", "c")
    assert desk.begin() is second
    assert desk.books.statistics().drops == {"stale": 1}


def test_one_whose_transfer_was_to_begin_is_dropped_and_takes_no_room() -> None:
    desk = Books()
    first, second = desk.add("a", "b")
    assert desk.begin() is first
    desk.books.drop_stale(first, REASON)
    assert (heard(first), first.state) == ([f"ended: {REASON}"], EntryState.GONE)
    assert desk.room.used == 0
    assert desk.begin() is second


def test_one_that_was_replaced_before_it_was_found_stale_ends_as_replaced() -> None:
    desk = Books()
    (first,) = desk.add("a")
    desk.begin()
    desk.add("a")
    desk.books.drop_stale(first, REASON)
    assert heard(first) == ["ended: a newer one with its key was staged"]
    assert not first.was_stale
    assert desk.keys() == ("a",)
    assert desk.books.statistics().drops == {"replaced": 1}


# --- the feed ---


def test_a_lent_one_is_given_back_when_the_daemon_says_that_it_is_stale(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a", 0))
    assert desk.feed.demand() == (1, (), False)
    desk.feed.stale(stale(0))
    assert link.reports == [finished_stale("a")]
    assert (desk.feed.held(), desk.feed.on_device(), desk.books.keys) == ((), (), ())
    assert link.last_demand() == (2, (), True), "another one is asked for in its place"
    desk.feed.stale(stale(0))
    assert len(link.reports) == 1


@pytest.mark.parametrize("other", [stale(1), stale(0, 2)])
def test_a_notice_about_another_slot_or_generation_moves_nothing(
    desk: Desk, link: RecordedLink, other: Stale
) -> None:
    desk.feed.lent(lend("a", 0))
    desk.feed.stale(other)
    assert (desk.books.keys, link.reports) == (("a",), [])
    desk.promote("a")
    desk.train("a")
    assert link.reports == [promoted("a"), finished("a")]


@pytest.mark.parametrize("moment", ["under way", "on the device", "brought back"])
def test_what_was_on_its_way_to_the_device_is_trained(desk: Desk, link: RecordedLink, moment: str) -> None:
    desk.feed.lent(lend("a", 0))
    entry = desk.begin("a")
    if moment == "under way":
        desk.feed.stale(stale(0))
    desk.arrive(entry)
    if moment == "on the device":
        desk.feed.stale(stale(0))
    if moment == "brought back":
        desk.books.want("b")
        desk.feed.lent(lend("b", 1, on_credit=False))
        desk.demote_for("a", wanted="b")
        desk.feed.stale(stale(0))
        assert entry.why_stale(0.0) == ""
        desk.promote("b")
        desk.dispatch(desk.take("b"))
        desk.promote("a")
    desk.train("a")
    assert link.reports[-1] == finished("a")
    assert not [report for report in link.reports if getattr(report, "stale", False)]


# --- the queue ---


def test_an_expired_one_is_never_transferred_and_the_next_comes_instead(
    link: RecordedLink, queue: StagingQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="forebay.trainer")
    feed_of(queue).lent(expired("a"))
    feed_of(queue).lent(lend("b", 1))
    with queue.take(timeout_s=WAIT_S) as batch:
        assert batch.key == "b"
    assert transfer_of(queue).log == ["issue b", "complete b"]
    first = link.reports[0]
    assert getattr(first, "stale", None) is True
    assert getattr(first, "slot", None) == 0
    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert [type(event) for event in events] == [StageStale]
    assert queue.statistics.drops == {"stale": 1}


def test_whoever_waits_for_one_that_is_stale_hears_why_though_the_daemon_may_be_away(
    link: RecordedLink, queue: StagingQueue
) -> None:
    call = Call(lambda: queue.take("a", timeout_s=WAIT_S))
    link.until_demanded("a")
    feed_of(queue).lent(expired("a"))
    error = call.error()
    assert isinstance(error, StaleError)
    assert (error.key, error.state) == ("a", MicroBatchState.DROPPED)
    assert error.reason.startswith("stale: its time was over")
    assert queue.keys == ()


def test_whoever_waits_hears_it_from_the_daemon_too(link: RecordedLink, queue: StagingQueue) -> None:
    call = Call(lambda: queue.take("a", timeout_s=WAIT_S))
    link.until_demanded("a")
    feed_of(queue).gone(KeyGone(key="a", state=MicroBatchState.DROPPED, reason=REASON, stale=True))
    assert isinstance(call.error(), StaleError)


def test_one_that_becomes_stale_while_it_waits_for_the_link_is_not_transferred(
    link: RecordedLink, queue: StagingQueue
) -> None:
    watch = Watch(queue)
    with queue._parts.link:
        feed_of(queue).lent(lend("a", 0))
        with watch._looked:
            assert watch._looked.wait_for(lambda: True in watch._found_work, WAIT_S)
        feed_of(queue).stale(stale(0))
        assert link.reports == []
    watch.settle()
    assert link.reports == [finished_stale("a")]
    assert transfer_of(queue).log == []
    assert queue.statistics.on_device == 0
