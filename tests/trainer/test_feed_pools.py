"""Another pool ends what was only lent from the old one, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.trainer import PromotionError, origins
from forebay.trainer.host_tree import host_tree_of
from forebay.wire import Finished, Limits, MicroBatchGoneError, default_registry

from .fake_transfer import payload
from .feed_desk import Desk, RecordedLink, finished, lend, promoted


def test_another_pool_ends_what_was_lent_but_not_what_is_on_the_device(link: RecordedLink) -> None:
    desk = Desk(2)
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.feed.lent(lend("b", 1))
    link.attached("another", same_pool=False)
    assert desk.books.keys == ("a",)
    assert desk.feed.held() == ()
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    assert desk.books.next_work() is None
    # The daemon has it staged again; it must not take "b" for trained, and the slot's number is another's now.
    (told,) = [report for report in link.reports if isinstance(report, Finished)]
    assert (told.key, told.slot) == ("b", -1)
    assert told.reason
    desk.feed.lent(lend("c", 0))
    assert desk.feed.held() == ((0, 1),)
    assert list(desk.books.keys) == ["a", "c"]


def test_a_key_of_a_pool_that_is_gone_keeps_its_one_entry_when_it_is_staged_again(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 0))
    link.attached("another", same_pool=False)
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.train("a")
    assert desk.books.keys == ()
    assert link.reports[-2:] == [promoted("a"), finished("a")]


def test_another_pool_leaves_alone_what_was_staged_in_process(desk: Desk, link: RecordedLink) -> None:
    desk.stage("a")
    link.attached("another", same_pool=False)
    assert desk.books.keys == ("a",)


def test_another_pool_leaves_alone_what_was_brought_back_to_the_host(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.books.want("b")
    desk.stage("b")
    desk.demote_for("a", wanted="b")
    link.attached("another", same_pool=False)
    assert desk.books.keys == ("a", "b")
    assert desk.feed.on_device() == (("a", "attempt of a"),)


def test_what_arrives_from_a_pool_that_is_gone_meanwhile_is_trained_and_releases_nothing_in_the_new_one(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 0))
    entry = desk.begin("a")
    entry.origin.read()
    link.attached("another", same_pool=False)
    assert desk.feed.held() == ()
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    desk.feed.lent(lend("b", 0))
    placed = desk.transfer.place(host_tree_of(payload("a"), default_registry))
    desk.books.arrived(entry, desk.transfer.complete(placed, desk.transfer.issue(placed)))
    assert link.reports == []
    assert desk.feed.held() == ((0, 1),)
    desk.train("a")
    assert link.reports == [finished("a", generation=0)]


def test_what_fails_to_arrive_from_a_pool_that_is_gone_meanwhile_is_given_up(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 0))
    entry = desk.begin("a")
    entry.origin.read()
    link.attached("another", same_pool=False)
    desk.books.failed(entry, PromotionError("no room on the device"))
    desk.books.want("a")
    if desk.books.keys:
        again = desk.begin("a")
        with pytest.raises(MicroBatchGoneError, match="its pool is gone") as failure:
            again.origin.read()
        desk.books.rejected(again, failure.value, "its pool is gone")
    (told,) = link.reports
    assert isinstance(told, Finished)
    assert (told.key, told.slot) == ("a", -1)
    assert "its pool is gone" in told.reason
    assert desk.feed.on_device() == ()


def test_the_reader_of_the_same_pool_learns_the_limits_of_a_new_daemon(link: RecordedLink, desk: Desk) -> None:
    limits = Limits(max_leaves=7)
    desk.feed.attached(Path("/dev/shm/pool"), limits, same_pool=True)
    desk.feed.lent(lend("a"))
    entry = desk.books.find("a")
    assert entry is not None
    assert isinstance(entry.origin, origins.LentSlot)
    assert entry.origin.reader.limits is limits
    assert link.reports == []
