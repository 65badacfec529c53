"""A key that is gone ends the wait for it alone; a broken link ends all waits; what was never heard is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.trainer import StagingQueue
from forebay.wire import BrokenError, MicroBatchGoneError, MicroBatchState

from .fake_transfer import payload
from .feed_desk import Desk, RecordedLink, feed_of, finished, gone, lend, promoted
from .waiting import WAIT_S

# --- keys that will never come ---


def test_a_wanted_key_that_is_gone_ends_the_wait_for_it_alone(desk: Desk) -> None:
    desk.feed.gone(gone("a"))
    desk.books.want("a")
    desk.feed.absent("a")  # nobody wanted it when the daemon said so; the daemon says it again
    desk.feed.gone(gone("a", MicroBatchState.LOST))
    desk.feed.absent(None)
    desk.feed.absent("b")
    with pytest.raises(MicroBatchGoneError, match="trained already") as failure:
        desk.feed.absent("a")
    assert (failure.value.key, failure.value.state) == ("a", MicroBatchState.LOST)
    with pytest.raises(MicroBatchGoneError):
        desk.feed.absent("a")  # for all who wait for it
    desk.books.unwant("a")
    desk.feed.demand_changed()
    desk.books.want("a")
    desk.feed.absent("a")


def test_a_key_that_was_gone_and_was_lent_after_all_is_not_told_to_be_gone(desk: Desk) -> None:
    desk.books.want("a")
    desk.feed.gone(gone("a", MicroBatchState.LOST))
    desk.feed.lent(lend("a", on_credit=False))
    desk.promote("a")
    desk.dispatch(desk.take("a"))
    desk.books.unwant("a")
    desk.books.want("a")
    desk.feed.absent("a")


def test_a_take_by_key_hears_that_its_key_is_gone_and_others_go_on(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with ThreadPoolExecutor(1) as pool:
        # Longer than the test waits: a wait that only ends by its timeout has heard nothing.
        taken = pool.submit(queue.take, "a", timeout_s=2 * WAIT_S)
        link.until_demanded("a")
        feed_of(queue).gone(gone("a"))
        with pytest.raises(MicroBatchGoneError, match=r"'a' is consumed: it was trained already"):
            taken.result(WAIT_S)
    assert feed_of(queue).demand()[1] == ()
    feed_of(queue).lent(lend("b"))
    with queue.take(timeout_s=WAIT_S) as batch:
        assert batch.key == "b"


# --- the link ---


def test_a_broken_link_raises_in_take_and_in_stage_and_enters_nothing(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with ThreadPoolExecutor(1) as pool:
        # Longer than the test waits: a wait that only ends by its timeout has heard nothing.
        taken = pool.submit(queue.take, "a", timeout_s=2 * WAIT_S)
        link.until_demanded("a")
        link.broken(BrokenError("the daemon speaks in riddles"))
        with pytest.raises(BrokenError, match="riddles"):
            taken.result(WAIT_S)
    for ask in (queue.take, lambda: queue.stage(payload("b"), key="b"), lambda: queue.put(payload("c"), key="c")):
        with pytest.raises(BrokenError, match="riddles"):
            ask()
    assert queue.keys == ()
    assert queue.statistics.staged == 0
    assert link.reports == []


def test_a_link_that_cannot_attach_is_closed(link: RecordedLink) -> None:
    link.refusal = BrokenError("nobody there")
    with pytest.raises(BrokenError, match="nobody there"):
        Desk()
    assert link.closed == 1


def test_to_close_names_the_keys_whose_end_the_daemon_never_heard(link: RecordedLink) -> None:
    desk = Desk()
    link.unconfirmed = (promoted("a"), finished("b"), finished("c"))
    with pytest.raises(BrokenError, match=r"never heard .*\['b', 'c'\]"):
        desk.feed.close()


def test_to_close_is_no_error_when_only_releases_are_unconfirmed(desk: Desk, link: RecordedLink) -> None:
    link.unconfirmed = (promoted("a"),)
    desk.feed.close()
    assert link.closed == 1


def test_a_feed_shows_its_queue_and_its_link(desk: Desk) -> None:
    assert repr(desk.feed) == "DaemonFeed('train' at ipc:///nowhere, attached)"
