"""A slot is held until its bytes are elsewhere, and released once, whatever becomes of the transfer."""

from __future__ import annotations

from forebay.trainer import PromotionError
from forebay.trainer.entry_states import EntryState
from forebay.wire import TreeError

from .feed_desk import Desk, RecordedLink, finished, lend, promoted

# --- what is lent, held and released ---


def test_a_slot_is_held_until_its_transfer_is_complete_and_then_released_once(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    assert (desk.feed.held(), desk.feed.on_device()) == (((3, 7),), ())
    entry = desk.begin("a")
    entry.origin.read()
    # With a daemon that comes anew it must be known as both: it may be on the device by then.
    assert (desk.feed.held(), desk.feed.on_device()) == (((3, 7),), (("a", "attempt of a"),))
    assert link.reports == []
    desk.arrive(entry)
    assert (desk.feed.held(), desk.feed.on_device()) == ((), (("a", "attempt of a"),))
    desk.train("a")
    assert link.reports == [promoted("a", 3, 7), finished("a", generation=7)]


def test_what_is_finished_is_no_longer_on_the_device_and_tells_its_attempt(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a"))
    desk.promote("a")
    entry = desk.take()
    desk.dispatch(entry)
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    entry.origin.ended("it raised")
    assert desk.feed.on_device() == ()
    assert link.reports[-1] == finished("a", reason="it raised")


def test_a_slot_that_is_lent_again_in_the_same_generation_is_not_entered_twice(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a"))
    for step in (lambda: None, lambda: desk.promote("a"), desk.take):
        step()
        keys, said = desk.books.keys, list(link.reports)
        link.attached("pool", same_pool=True)
        desk.feed.lent(lend("a", on_credit=False))
        assert (desk.books.keys, link.reports) == (keys, said)
    assert desk.books.next_work() is None
    desk.feed.lent(lend("b", generation=2))
    assert desk.feed.held() == ((0, 2),)
    assert desk.books.keys == ("b",)


# --- transfers that fail ---


def test_a_promotion_that_may_succeed_later_keeps_its_slot_and_its_place(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a", 0))
    desk.feed.lent(lend("b", 1))
    error = PromotionError("no room on the device")
    desk.books.failed(desk.begin("a"), error)
    assert sorted(desk.feed.held()) == [(0, 1), (1, 1)]
    assert desk.feed.on_device() == ()
    assert desk.books.keys == ("a", "b")
    head = desk.books.find(None)
    assert head is not None
    assert head.failure is error
    assert link.reports == []
    desk.books.want(None)
    desk.promote("a")
    assert link.reports == [promoted("a", 0)]
    desk.train("a")


def test_a_promotion_that_cannot_succeed_releases_its_slot_with_the_reason(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a", 2, 5))
    error = TreeError("no such class")
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.rejected(entry, error, "no such class")
    assert link.reports == [finished("a", 2, 5, reason="no such class")]
    assert (desk.feed.held(), desk.feed.on_device()) == ((), ())
    taken = desk.take()
    assert (taken.key, taken.failure) == ("a", error)
    assert desk.books.next_work() is None
    assert len(link.reports) == 1


# --- brought back to the host ---


def test_what_was_brought_back_to_the_host_counts_as_on_the_device_for_the_daemon(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.books.want("b")
    desk.feed.lent(lend("b", 1, on_credit=False))
    entry = desk.demote_for("a", wanted="b")
    assert entry.state is EntryState.HOST
    # Its slot is released, and may hold another micro-batch: only this trainer still has its bytes.
    assert desk.feed.held() == ((1, 1),)
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    assert link.reports == [promoted("a", 0)]


def test_what_comes_to_the_device_a_second_time_releases_its_slot_no_second_time(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.books.want("b")
    desk.feed.lent(lend("b", 1, on_credit=False))
    desk.demote_for("a", wanted="b")
    desk.promote("b")
    desk.dispatch(desk.take("b"))
    desk.promote("a")
    desk.train("a")
    said = [report for report in link.reports if report != finished("b")]
    assert said == [promoted("a", 0), promoted("b", 1), finished("a")]
