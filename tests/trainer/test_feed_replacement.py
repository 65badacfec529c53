"""A lent entry that is replaced or reset is reported once, and when no transfer is under way."""

from __future__ import annotations

import pytest

from forebay.trainer import PromotionError, StagingQueue
from forebay.wire import TreeError

from .fake_transfer import payload
from .feed_desk import REPLACED, RESET, Desk, RecordedLink, feed_of, finished, lend, promoted, transfer_of
from .waiting import WAIT_S

# --- two sources, one key ---


def test_a_lent_entry_that_is_replaced_in_process_releases_its_slot_and_says_so_once(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    desk.stage("a")
    assert link.reports == [finished("a", 4, 2, reason=REPLACED)]
    assert (desk.feed.held(), desk.feed.on_device()) == ((), ())
    desk.promote("a")
    desk.train("a")
    assert len(link.reports) == 1


def test_a_lent_entry_on_the_device_that_is_replaced_in_process_says_so_and_releases_nothing_twice(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    desk.promote("a")
    desk.stage("a")
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2, reason=REPLACED)]


def test_a_lent_entry_that_is_replaced_in_mid_transfer_keeps_its_slot_until_that_is_over(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    entry = desk.begin("a")
    entry.origin.read()
    desk.stage("a")
    assert link.reports == []
    assert desk.feed.held() == ((4, 2),)
    desk.arrive(entry)
    assert link.reports == [finished("a", 4, 2, reason=REPLACED)]
    assert desk.books.keys == ("a",)


def test_an_entry_staged_in_process_is_replaced_by_a_lend_in_its_place(link: RecordedLink) -> None:
    desk = Desk(3)
    desk.stage("a")
    desk.stage("b")
    desk.feed.lent(lend("a", 4, 2))
    assert desk.books.keys == ("a", "b")
    assert desk.feed.held() == ((4, 2),)
    desk.promote("a")
    desk.train("a")
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2)]


# --- reset ---


def test_reset_releases_the_slots_and_reports_each_entry_dropped_once(link: RecordedLink) -> None:
    desk = Desk(2)
    for slot, key in enumerate("abc"):
        desk.feed.lent(lend(key, slot))
    desk.promote("a")
    in_step = desk.take()
    desk.promote("b")
    del link.reports[:]
    desk.books.reset()
    assert desk.books.keys == ()
    assert link.reports == [
        finished("b", reason=RESET),
        finished("c", 2, reason=RESET),
    ]
    assert desk.feed.held() == ()
    # The step that has its batch keeps it.
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    desk.dispatch(in_step)
    in_step.origin.ended("")
    assert link.reports[2:] == [finished("a")]


@pytest.mark.parametrize("ending", ["complete", "failed", "rejected"])
def test_reset_in_mid_transfer_keeps_the_slot_until_the_transfer_is_over_and_then_reports_it_once(
    desk: Desk, link: RecordedLink, ending: str
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.reset()
    assert link.reports == []
    assert desk.feed.held() == ((4, 2),)
    match ending:
        case "complete":
            desk.arrive(entry)
        case "failed":
            desk.books.failed(entry, PromotionError("no room"))
        case _:
            desk.books.rejected(entry, TreeError("no such class"), "no such class")
    assert link.reports == [finished("a", 4, 2, reason=RESET)]
    assert (desk.feed.held(), desk.feed.on_device(), desk.books.keys) == ((), (), ())


@pytest.mark.parametrize("ending", ["returned", "stayed"])
def test_reset_while_an_entry_is_brought_back_reports_it_once_when_that_is_over(
    desk: Desk, link: RecordedLink, ending: str
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    desk.promote("a")
    desk.books.want("b")
    desk.feed.lent(lend("b", 5, 2, on_credit=False))
    work = desk.begin_to_demote("a", wanted="b")
    del link.reports[:]
    desk.books.reset()
    assert link.reports == [finished("b", 5, 2, reason=RESET)]
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    if ending == "returned":
        assert work.entry.on_device is not None
        desk.books.returned(work.entry, desk.transfer.fetch(work.entry.on_device))
    else:
        desk.books.stayed(work, PromotionError("it could not be brought back"))
    assert link.reports[1:] == [finished("a", generation=2, reason=RESET)]
    assert desk.feed.on_device() == ()


def test_reset_while_a_real_transfer_is_under_way_reports_the_slot_when_that_is_over(
    link: RecordedLink, queue: StagingQueue
) -> None:
    transfer = transfer_of(queue)
    transfer.hold()
    feed_of(queue).lent(lend("a", 4, 2))
    transfer.wait_until_begun()
    queue.reset()
    assert link.reports == []
    transfer.let_go(all_after=True)
    # The queue promotes one at a time, so this one comes after the one that was dropped.
    queue.stage(payload("b"), key="b")
    queue.take("b", timeout_s=WAIT_S).close()
    assert link.reports == [finished("a", 4, 2, reason=RESET), finished("b", generation=0, was_read=False)]
    assert transfer.live == []


def test_reset_has_the_demand_stated_anew(link: RecordedLink, queue: StagingQueue) -> None:
    feed = feed_of(queue)
    feed.asked()
    feed.lent(lend("a"))
    assert feed.demand() == (1, (), False)
    link.last_demand()
    queue.reset()
    assert link.last_demand() == (2, (), True)
