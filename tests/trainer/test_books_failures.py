"""What fails to be transferred rests in its place, is tried again when asked for, and stops nobody else."""

from __future__ import annotations

import pytest

from forebay.trainer import PromotionError
from forebay.trainer.entry import Entry
from forebay.trainer.entry_states import EntryState

from .books_desk import Desk, heard

S = EntryState


def test_an_origin_hears_of_its_transfer_only_when_the_bytes_have_arrived() -> None:
    desk = Desk(1)
    (entry,) = desk.add("a")
    desk.begin()
    assert heard(entry) == []
    desk.books.failed(entry, PromotionError("no memory"))
    assert heard(entry) == []
    assert entry.placed is not None
    desk.books.want("a")
    desk.bring()
    assert heard(entry) == ["transferred"]


def test_an_entry_that_failed_rests_in_its_place_while_others_go_on() -> None:
    desk = Desk(2)
    entry, _ = desk.add("a", "b")
    failure = PromotionError("no memory")
    desk.books.failed(desk.begin(), failure)
    assert (entry.state, entry.failure) == (S.HOST, failure)
    assert desk.keys() == ("a", "b")
    assert desk.bring()[0].key == "b"
    assert desk.books.next_work() is None
    assert not desk.books.will_promote(entry)
    assert desk.books.statistics().failures == 1


def rest(desk: Desk) -> Entry:
    (entry,) = desk.add("a")
    desk.books.failed(desk.begin(), PromotionError("no memory"))
    assert desk.books.next_work() is None
    return entry


def test_an_entry_that_failed_is_tried_again_when_a_step_was_dispatched() -> None:
    desk = Desk(1)
    entry = rest(desk)
    desk.room.inline_begins()
    desk.room.inline_ends(in_step=True)
    desk.books.dispatched(None, None)
    assert entry.failure is None
    assert desk.begin() is entry


@pytest.mark.parametrize("key", ["a", None])
def test_an_entry_that_failed_is_tried_again_once_for_each_request(key: str | None) -> None:
    desk = Desk(1)
    entry = rest(desk)
    for _ in range(2):
        desk.books.want(key)
        assert entry.failure is None
        desk.books.failed(desk.begin(), PromotionError("no memory"))
        assert desk.books.next_work() is None
        desk.books.unwant(key)
    assert desk.books.statistics().failures == 3


def test_a_request_for_another_key_leaves_an_entry_that_failed_at_rest() -> None:
    desk = Desk(1)
    entry = rest(desk)
    desk.add("b")
    desk.books.want("b")
    assert desk.begin().key == "b"
    assert entry.failure is not None


def test_an_entry_that_could_not_be_brought_back_stays_and_the_one_waited_for_rests() -> None:
    desk = Desk(1)
    first, last = desk.add("a", "b")
    desk.bring()
    desk.books.want("b")
    failure = PromotionError("no memory")
    desk.books.stayed(desk.begin_demotion(), failure)
    assert (first.state, first.failure) == (S.ON_DEVICE, None)
    assert first.on_device is not None
    assert (last.state, last.failure) == (S.HOST, failure)
    assert desk.books.next_work() is None
    assert desk.counts() == (1, 1, 0)
    assert desk.keys() == ("a", "b")


def test_a_rejected_entry_keeps_its_place_until_somebody_takes_it_and_uses_no_room() -> None:
    desk = Desk(1)
    entry, _ = desk.add("a", "b")
    failure = RuntimeError("bad leaf")
    desk.books.rejected(desk.begin(), failure, "bad leaf")
    assert (entry.state, entry.failure, entry.placed) == (S.REJECTED, failure, None)
    assert heard(entry) == ["ended: bad leaf"]
    assert desk.keys() == ("a", "b")
    assert desk.bring()[0].key == "b"
    assert desk.take() is entry
    assert desk.keys() == ("b",)
    assert heard(entry) == ["ended: bad leaf"]
    numbers = desk.books.statistics()
    assert (numbers.taken, dict(numbers.drops)) == (0, {"rejected": 1})
