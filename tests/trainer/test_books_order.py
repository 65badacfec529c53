"""Which entry is promoted next: in order, no more than the cap, and the device one step behind."""

from __future__ import annotations

import pytest

from forebay.trainer.entry import Entry
from forebay.trainer.entry_states import EntryState
from forebay.trainer.queue_books import Await

from .books_desk import Desk, Heard, placed_tree
from .fake_transfer import FakeWork

S = EntryState


def test_entries_are_promoted_in_the_order_in_which_they_were_entered() -> None:
    desk = Desk(3)
    desk.add("b", "a", "c")
    assert [entry.key for entry in desk.bring(3)] == ["b", "a", "c"]


def test_entries_of_two_origins_keep_one_order() -> None:
    class FromSlot(Heard):
        pass

    desk = Desk(0)
    for index, origin in enumerate([Heard(), FromSlot(), Heard(), FromSlot()]):
        desk.books.add(Entry(f"{index}", origin, None if isinstance(origin, FromSlot) else placed_tree("x")))
    assert desk.keys() == ("0", "1", "2", "3")
    assert [entry.key for entry in desk.bring(4)] == ["0", "1", "2", "3"]
    assert [desk.take().key for _ in range(4)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_no_more_entries_come_to_the_device_than_the_cap(cap: int) -> None:
    desk = Desk(cap)
    entries = desk.add(*"abcde")
    desk.bring(cap)
    assert desk.books.next_work() is None
    assert desk.counts() == (5 - cap, cap, 0)
    assert [entry.state for entry in entries] == [S.ON_DEVICE] * cap + [S.HOST] * (5 - cap)
    assert [entry.placed is None for entry in entries] == [entry.on_device is not None for entry in entries]


def test_an_entry_on_its_way_counts_towards_the_cap() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.begin()
    assert desk.books.next_work() is None
    assert desk.counts() == (2, 0, 0)


def test_an_entry_in_a_step_counts_towards_the_cap_until_it_is_dispatched() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.bring()
    taken = desk.take()
    assert desk.counts() == (1, 0, 1)
    assert desk.books.next_work() is None
    desk.books.dispatched(taken, None)
    assert desk.counts() == (1, 0, 0)
    assert taken.on_device is None
    assert desk.begin().key == "b"


def test_a_step_that_failed_makes_room_as_well() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.bring()
    desk.books.dispatched(desk.take(), None)  # what a step that raised before it had outputs tells
    assert desk.begin().key == "b"


def test_without_a_cap_all_entries_come_whatever_runs() -> None:
    desk = Desk(0)
    desk.add(*"abcdefghij")
    desk.bring(10)
    works = [desk.work_of_a_step() for _ in range(5)]
    desk.add("k")
    assert desk.begin().key == "k"
    assert not any(work.is_done() for work in works)
    assert repr(desk.room) == "6 of inf on the device, 0 in a step, 5 running"


def test_at_most_one_dispatched_micro_batch_still_runs_when_a_transfer_begins() -> None:
    desk = Desk(1)
    desk.add("a", "b", "c")
    desk.bring()
    first = desk.work_of_a_step()
    desk.bring()  # beside the one that runs
    second = desk.work_of_a_step()
    assert desk.books.next_work() == Await(first)
    assert desk.books.next_work() == Await(first), "nothing has moved"
    assert desk.counts() == (1, 0, 0)
    first.finish()
    desk.room.awaited(first)
    assert desk.begin().key == "c"
    assert desk.room.running == (second,)


def test_the_work_of_a_step_without_a_staged_entry_counts_as_running_too() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.bring()
    work = desk.work_of_a_step()
    desk.room.inline_begins()
    desk.room.inline_ends(in_step=True)
    assert desk.books.next_work() == Await(work)
    inline_work = FakeWork()
    desk.books.dispatched(None, inline_work)
    assert desk.books.next_work() == Await(work)
    desk.room.awaited(work)
    assert desk.begin().key == "b"
    assert desk.room.running == (inline_work,)


def test_work_that_the_device_has_finished_is_forgotten_without_a_wait() -> None:
    desk = Desk(1)
    desk.add("a", "b", "c")
    desk.bring()
    desk.work_of_a_step().finish()
    desk.bring()
    desk.work_of_a_step()
    assert len(desk.room.running) == 1
    assert desk.begin().key == "c"


def test_a_feed_is_asked_for_as_many_entries_as_the_device_will_hold() -> None:
    desk = Desk(2)
    assert desk.books.free_places(99) == 2
    desk.add("a")
    assert desk.books.free_places(99) == 1
    desk.add("b", "c")
    assert desk.books.free_places(99) == 0
    assert Desk(0).books.free_places(99) == 99


# Told to people.


def test_the_books_show_their_entries_and_the_room() -> None:
    desk = Desk(2)
    desk.add("a", "b", "c")
    desk.bring(2)
    desk.take()
    desk.room.runs(FakeWork(), holds_inputs=False)
    assert repr(desk.books) == "['b' on_device, 'c' host], 2 of 2 on the device, 1 in a step, 1 running"


def test_books_of_many_entries_show_the_first_eight() -> None:
    desk = Desk(1)
    desk.add(*"abcdefghij")
    first = ", ".join(f"'{key}' host" for key in "abcdefgh")
    assert repr(desk.books) == f"[{first} and 2 more], 0 of 1 on the device, 0 in a step, 0 running"
