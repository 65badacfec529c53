"""What transfers and steps may begin beside each other: with a payload of their own, and serialized."""

from __future__ import annotations

from forebay.trainer.entry_states import EntryState
from forebay.trainer.queue_books import Await

from .books_desk import Desk, placed_tree
from .fake_transfer import FakeWork

S = EntryState


# Steps with a payload of their own.


def test_no_transfer_begins_that_a_step_with_its_own_payload_would_have_to_wait_for() -> None:
    desk = Desk(1)
    desk.add("a")
    desk.room.inline_begins()
    assert desk.books.next_work() is None
    desk.room.inline_ends(in_step=True)
    assert desk.begin().key == "a"


def test_a_drop_begins_no_transfer_while_a_step_transfers_its_own_payload() -> None:
    desk = Desk(1)
    entry, _ = desk.add("a", "b")
    desk.bring()
    desk.books.drop(entry, "mismatch", "other bytes")
    desk.room.inline_begins()
    assert desk.books.next_work() is None
    desk.room.inline_ends(in_step=False)
    assert desk.begin().key == "b"


def test_an_entry_that_another_step_waits_for_comes_after_what_a_step_transfers_itself() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.room.inline_begins()
    desk.books.want("b")
    assert desk.books.next_work() is None
    desk.room.inline_ends(in_step=True)
    assert desk.begin().key == "b"


def test_work_that_was_given_away_is_done_when_later_work_is() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.bring()
    given_away, later, update = FakeWork(), FakeWork(), FakeWork()
    given_away.lost = True
    desk.room.runs(given_away, holds_inputs=True)
    desk.room.runs(update, holds_inputs=False)
    desk.books.dispatched(desk.take(), later)
    assert desk.books.next_work() == Await(update)
    desk.room.awaited(update)
    assert desk.room.running == (later,)
    assert desk.begin().key == "b"


def test_work_that_was_given_away_to_nobody_we_see_keeps_nothing_waiting() -> None:
    desk = Desk(1, serialize=True)
    desk.add("a")
    given_away = FakeWork()
    given_away.lost = True
    desk.room.runs(given_away, holds_inputs=True)
    assert desk.begin().key == "a"


def test_an_update_counts_for_nothing_but_to_tell_that_earlier_work_is_done() -> None:
    desk = Desk(1)
    desk.add("a")
    desk.room.runs(FakeWork(), holds_inputs=False)
    desk.room.runs(FakeWork(), holds_inputs=False)
    assert desk.begin().key == "a"


def test_serialized_no_entry_that_nobody_waits_for_comes_before_a_step_has_dispatched_its_own_payload() -> None:
    desk = Desk(1, serialize=True)
    desk.add("a")
    desk.room.inline_step_begins()
    assert desk.books.next_work() is None
    desk.books.dispatched(None, None)
    assert desk.begin().key == "a"


def test_serialized_no_transfer_begins_while_a_step_waits_to_dispatch() -> None:
    desk = Desk(2, serialize=True)
    desk.add("a")
    desk.books.want("a")
    desk.room.dispatch_is_due()
    assert desk.books.next_work() is None
    desk.room.dispatch_is_no_longer_due()
    assert desk.begin().key == "a"


def test_serialized_a_step_with_its_own_payload_has_the_device_waited_for() -> None:
    desk = Desk(1, serialize=True)
    work = FakeWork()
    desk.room.runs(work, holds_inputs=True)
    desk.room.inline_begins()
    assert not desk.room.is_quiet
    assert desk.books.next_work() == Await(work)
    desk.room.awaited(work)
    assert desk.room.is_quiet


def test_a_step_with_its_own_payload_uses_none_of_the_cap() -> None:
    desk = Desk(1)
    desk.add("a")
    desk.room.inline_begins()
    desk.room.inline_ends(in_step=True)
    assert desk.bring()[0].key == "a"
    numbers = desk.books.statistics()
    assert (numbers.on_device, numbers.in_step, numbers.inline_steps) == (1, 0, 1)
    desk.books.dispatched(None, None)
    assert desk.books.statistics().inline_steps == 0


# Serialized.


def test_serialized_no_transfer_begins_before_the_device_has_finished_all_that_was_dispatched() -> None:
    desk = Desk(1, serialize=True)
    desk.add("a", "b")
    desk.bring()
    work = desk.work_of_a_step()
    update = FakeWork()
    desk.room.runs(update, holds_inputs=True)
    assert desk.books.next_work() == Await(work)
    desk.room.awaited(work)
    assert desk.books.next_work() == Await(update)
    desk.room.awaited(update)
    assert desk.begin().key == "b"


def test_serialized_no_transfer_begins_while_work_is_handed_to_the_device() -> None:
    desk = Desk(1, serialize=True)
    desk.add("a")
    desk.books.want("a")
    desk.room.dispatch_begins()
    assert not desk.room.is_quiet
    assert not desk.allows_transfer()
    assert desk.books.next_work() is None
    desk.room.dispatch_ends()
    assert desk.allows_transfer()
    assert desk.begin().key == "a"


def test_serialized_no_transfer_begins_while_a_step_transfers_its_own_payload() -> None:
    desk = Desk(1, serialize=True)
    desk.add("a")
    desk.books.want("a")
    desk.room.inline_begins()
    assert not desk.allows_transfer()
    assert desk.books.next_work() is None
    desk.room.inline_ends(in_step=False)
    assert desk.begin().key == "a"


def test_serialized_no_work_is_handed_to_the_device_while_bytes_are_under_way() -> None:
    desk = Desk(1, serialize=True)
    first, last = desk.add("a", "b")
    assert desk.allows_dispatch()
    desk.begin()
    assert not desk.allows_dispatch()
    desk.arrive(first)
    assert desk.allows_dispatch()
    desk.books.want("b")
    desk.begin_demotion()
    assert not desk.allows_dispatch()
    desk.books.returned(first, placed_tree("a"))
    assert desk.allows_dispatch()
    desk.begin()
    desk.books.drop(last, "reset", "")
    assert last.state is S.ABANDONED
    assert not desk.allows_dispatch()
    desk.arrive(last)
    assert desk.allows_dispatch()
    desk.room.inline_begins()
    assert not desk.allows_dispatch()
    desk.room.inline_ends(in_step=True)
    assert desk.allows_dispatch()


def test_not_serialized_transfers_and_work_do_not_wait_for_each_other() -> None:
    desk = Desk(2)
    desk.add("a", "b")
    desk.begin()
    desk.room.inline_step_begins()
    assert desk.allows_dispatch()
    desk.room.dispatch_begins()
    assert desk.allows_transfer()
