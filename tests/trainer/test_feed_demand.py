"""A feed asks its daemon for as much as the device will hold, and for the keys that somebody waits for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.trainer import StagingQueue

from .fake_transfer import payload
from .feed_desk import MOST_SLOTS, Desk, RecordedLink, feed_of, finished, lend, transfer_of
from .waiting import WAIT_S


@pytest.mark.usefixtures("link")
def test_nothing_is_asked_for_before_the_first_request() -> None:
    desk = Desk(asked=False)
    assert desk.feed.demand() == (0, (), False)
    desk.feed.asked()
    assert desk.feed.demand() == (1, (), True)


def test_a_take_that_waits_is_a_request(link: RecordedLink, queue: StagingQueue) -> None:
    queue.stage(payload("a"), key="a")
    while not link.demands.empty():
        assert link.demands.get() == (0, (), False)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(queue.take, "b", timeout_s=WAIT_S)
        link.until_demanded("b")
        feed_of(queue).lent(lend("b", on_credit=False))
        taken.result(WAIT_S).close()


def test_a_take_that_need_not_wait_is_a_request_too(link: RecordedLink, queue: StagingQueue) -> None:
    transfer = transfer_of(queue)
    transfer.hold()
    queue.stage(payload("a"), key="a")
    transfer.wait_until_begun()
    feed = feed_of(queue)
    with queue._parts.changed:
        transfer.let_go()
        assert queue._parts.changed.wait_for(lambda: queue.statistics.on_device == 1, WAIT_S)
    with queue.take():
        assert feed.demand() == (1, (), True), "else nothing is promoted ahead while this one is in use"
        assert link.reports == []
    assert link.reports == [finished("a", generation=0, was_read=False)], "the daemon may have it as well"


def test_one_is_asked_for_ahead_and_the_next_when_that_is_taken(desk: Desk) -> None:
    desk.feed.lent(lend("a", 0))
    assert desk.feed.demand() == (1, (), False)
    desk.promote("a")
    assert desk.feed.demand() == (1, (), False)
    first = desk.take()
    assert desk.feed.demand() == (2, (), True)
    desk.feed.lent(lend("b", 1))
    assert desk.feed.demand() == (2, (), False)
    assert desk.books.next_work() is None, "a taken batch counts until it is dispatched"
    desk.dispatch(first)
    assert desk.feed.demand() == (2, (), False)
    desk.promote("b")
    assert desk.take().key == "b"
    assert desk.feed.demand() == (3, (), True)


@pytest.mark.usefixtures("link")
def test_as_many_are_asked_for_ahead_as_may_be_on_the_device() -> None:
    desk = Desk(3)
    assert desk.feed.demand() == (3, (), True)
    for slot, key in enumerate("abc"):
        desk.feed.lent(lend(key, slot))
    assert desk.feed.demand() == (3, (), False)
    desk.promote("a")
    desk.take("a")
    assert desk.feed.demand() == (4, (), True)


@pytest.mark.usefixtures("link")
def test_with_an_unlimited_cap_more_is_asked_for_than_a_daemon_has_slots() -> None:
    desk = Desk(0)
    for slot in range(MOST_SLOTS):
        total, keys, is_unmet = desk.feed.demand()
        assert total >= MOST_SLOTS
        assert (keys, is_unmet) == ((), True)
        desk.feed.lent(lend(f"k{slot}", slot))
    assert desk.feed.demand()[0] - MOST_SLOTS >= MOST_SLOTS


def test_what_is_staged_in_process_takes_a_place_ahead(desk: Desk) -> None:
    desk.stage("a")
    assert desk.feed.demand() == (0, (), False)
    desk.promote("a")
    desk.take()
    assert desk.feed.demand() == (1, (), True)


def test_a_wanted_key_is_asked_for_beyond_the_credit_until_it_is_queued(desk: Desk) -> None:
    desk.feed.lent(lend("a", 0))
    desk.books.want("c")
    assert desk.feed.demand() == (1, ("c",), True)
    desk.feed.lent(lend("c", 2, on_credit=False))
    assert desk.feed.demand() == (1, (), False)


def test_a_lend_beyond_the_credit_uses_none_of_it(desk: Desk) -> None:
    desk.feed.lent(lend("a", 0, on_credit=False))
    desk.promote("a")
    desk.take()
    assert desk.feed.demand() == (1, (), True)


@pytest.mark.parametrize("same_pool", [False, True])
def test_the_credit_total_begins_anew_with_each_attachment(
    desk: Desk, link: RecordedLink, same_pool: bool
) -> None:
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.take()
    assert desk.feed.demand() == (2, (), True)
    link.attached("pool", same_pool=same_pool)
    assert desk.feed.demand() == (1, (), True)


def test_a_wanted_key_is_promoted_at_once_and_kept_for_whoever_wants_it(desk: Desk) -> None:
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.books.want("c")
    desk.feed.lent(lend("b", 1))
    desk.feed.lent(lend("c", 2, on_credit=False))
    desk.demote_for("a", wanted="c")
    desk.promote("c")
    head = desk.books.find(None)
    assert head is not None
    assert head.key == "a"
    wanted = desk.take("c")
    desk.books.unwant("c")
    desk.dispatch(wanted)
    for key in ("a", "b"):
        desk.promote(key)
        desk.train(key)
    assert desk.books.find(None) is None


def test_a_wanted_key_is_not_handed_to_another_that_takes_the_next(desk: Desk) -> None:
    desk.books.want("c")
    desk.feed.lent(lend("c", 2, on_credit=False))
    desk.promote("c")
    assert desk.books.find(None) is None
    assert desk.take("c").key == "c"
