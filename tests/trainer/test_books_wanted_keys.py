"""A key that somebody waits for comes before its turn, and the others keep theirs."""

from __future__ import annotations

from forebay.trainer.entry_states import EntryState

from .books_desk import Desk, heard, placed_tree

S = EntryState


def test_a_key_that_is_not_the_head_is_found_and_the_others_keep_their_order() -> None:
    desk = Desk(0)
    desk.add(*"abcd")
    desk.bring(4)
    desk.take("c")
    assert desk.keys() == ("a", "b", "d")
    desk.take("a")
    assert desk.keys() == ("b", "d")
    assert desk.take().key == "b"


def test_an_entry_that_is_waited_for_is_promoted_before_its_turn() -> None:
    desk = Desk(1)
    desk.add("a", "b", "c")
    desk.books.want("c")
    assert desk.begin().key == "c"


def test_a_key_taken_out_of_order_has_the_waiting_entry_brought_back_and_never_exceeds_the_cap() -> None:
    desk = Desk(1)
    first, last = desk.add("a", "b")
    desk.bring()
    desk.books.want("b")
    work = desk.begin_demotion()
    assert (work.entry, work.wanted) == (first, last)
    assert desk.counts() == (2, 0, 0)
    assert desk.books.next_work() is None, "it is on the device until it is back"
    desk.books.returned(first, placed_tree("a"))
    assert (first.state, first.on_device) == (S.HOST, None)
    assert first.placed is not None
    assert desk.keys() == ("a", "b")
    assert desk.bring() == [last]
    assert desk.books.next_work() is None
    desk.take("b")
    desk.books.unwant("b")
    assert desk.keys() == ("a",)
    assert desk.books.statistics().demotions == 1


def test_the_entry_whose_turn_is_farthest_away_is_brought_back() -> None:
    desk = Desk(2)
    desk.add("a", "b", "c")
    desk.bring(2)
    desk.books.want("c")
    assert desk.begin_demotion().entry.key == "b"


def test_an_entry_that_somebody_waits_for_is_not_brought_back_for_another() -> None:
    desk = Desk(1)
    desk.add("a", "b", "c")
    desk.bring()
    desk.books.want("a")
    desk.books.want("c")
    assert desk.books.next_work() is None
    desk.books.unwant("a")
    assert desk.begin_demotion().entry.key == "a"


def test_the_head_that_a_keyless_step_waits_for_is_not_brought_back_for_another() -> None:
    desk = Desk(1)
    desk.add("a", "b", "c")
    desk.bring()
    desk.books.want(None)
    desk.books.want("c")
    assert desk.books.next_work() is None
    desk.books.unwant(None)
    assert desk.begin_demotion().entry.key == "a"


def test_an_entry_in_a_step_is_not_brought_back() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.bring()
    desk.take()
    desk.books.want("b")
    assert desk.books.next_work() is None


def test_a_keyless_step_gets_the_first_entry_that_nobody_waits_for_by_its_key() -> None:
    desk = Desk(1)
    a, b, c = desk.add("a", "b", "c")
    desk.books.want("a")
    assert desk.books.find(None) is b
    desk.books.want("b")
    assert desk.books.find(None) is c
    desk.books.unwant("a")
    assert desk.books.find(None) is a
    desk.books.want("a")
    desk.books.want("c")
    assert desk.books.find(None) is None


def test_a_key_is_waited_for_until_the_last_who_waits_is_gone() -> None:
    desk = Desk(1)
    a, _ = desk.add("a", "b")
    desk.books.want("a")
    desk.books.want("a")
    desk.books.unwant("a")
    assert desk.books.find(None) is not a
    desk.books.unwant("a")
    assert desk.books.find(None) is a


def test_keys_that_somebody_waits_for_and_that_are_not_queued_are_told_to_the_feed() -> None:
    desk = Desk(1)
    desk.add("a")
    desk.books.want("a")
    desk.books.want("x")
    desk.books.want(None)
    assert desk.missing() == ("x",)
    desk.books.unwant("x")
    assert desk.missing() == ()


def test_an_origin_hears_of_its_transfer_once_also_when_its_entry_was_brought_back() -> None:
    desk = Desk(1)
    first, last = desk.add("a", "b")
    desk.bring()
    desk.books.want("b")
    desk.books.returned(desk.begin_demotion().entry, placed_tree("a"))
    desk.bring()
    desk.books.unwant("b")
    desk.books.dispatched(desk.take("b"), None)
    desk.bring()
    assert first.state is S.ON_DEVICE
    assert heard(first) == ["transferred"]
    assert heard(last) == ["transferred"]
