"""An entry that is replaced or reset, in whatever state, leaves the books right and its origin told once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.trainer import PromotionError
from forebay.trainer.entry import Entry
from forebay.trainer.entry_states import MOVING, EntryState
from forebay.trainer.queue_books import Demote

from .books_desk import Desk, Heard, heard, placed_tree

S = EntryState


def at_once(_desk: Desk, _entry: Entry) -> None:
    """No transfer is under way."""


def end_arrived(desk: Desk, entry: Entry) -> None:
    desk.arrive(entry)


def end_failed(desk: Desk, entry: Entry) -> None:
    desk.books.failed(entry, PromotionError("no memory"))


def end_rejected(desk: Desk, entry: Entry) -> None:
    desk.books.rejected(entry, RuntimeError("bad leaf"), "bad leaf")


def end_returned(desk: Desk, entry: Entry) -> None:
    desk.books.returned(entry, placed_tree(entry.key))


def end_stayed(desk: Desk, entry: Entry) -> None:
    wanted = desk.books.find("z")
    assert wanted is not None
    desk.books.stayed(Demote(entry, wanted), PromotionError("no memory"))


End = Callable[[Desk, Entry], None]
LIVES: list[tuple[EntryState, End]] = [
    (S.HOST, at_once),
    (S.ON_DEVICE, at_once),
    (S.PROMOTING, end_arrived),
    (S.PROMOTING, end_failed),
    (S.PROMOTING, end_rejected),
    (S.DEMOTING, end_returned),
    (S.DEMOTING, end_stayed),
]
in_every_life = pytest.mark.parametrize(
    ("state", "end"), LIVES, ids=[f"{state}-{end.__name__}" for state, end in LIVES]
)


def desk_with_b_in(state: EntryState) -> tuple[Desk, Entry]:
    """Returns a desk with the keys a, b, c, z, of which b is in a state and the others on the host."""
    desk = Desk(1)
    _, entry, _, _ = desk.add("a", "b", "c", "z")
    if state is S.HOST:
        return desk, entry
    desk.books.want("b")
    assert desk.begin() is entry
    desk.books.unwant("b")
    if state is S.REJECTED:
        desk.books.rejected(entry, RuntimeError("bad leaf"), "bad leaf")
    elif state is not S.PROMOTING:
        desk.arrive(entry)
    if state is S.DEMOTING:
        desk.books.want("z")
        assert desk.begin_demotion().entry is entry
        desk.books.unwant("z")
    assert entry.state is state
    return desk, entry


@in_every_life
def test_a_replaced_entry_leaves_its_place_to_the_newer_one(state: EntryState, end: End) -> None:
    desk, old = desk_with_b_in(state)
    new = Entry("b", Heard(), placed_tree("b"))
    assert desk.books.add(new) is old
    assert desk.keys() == ("a", "b", "c", "z")
    assert desk.books.find("b") is new
    end(desk, old)
    assert desk.keys() == ("a", "b", "c", "z")
    assert desk.books.find("b") is new
    assert new.state is S.HOST
    assert old.state is S.GONE


@in_every_life
def test_the_counts_are_right_when_an_entry_was_replaced(state: EntryState, end: End) -> None:
    desk, old = desk_with_b_in(state)
    desk.books.add(Entry("b", Heard(), placed_tree("b")))
    assert desk.counts() == (4, 0, 0)
    is_moving = old.state in MOVING
    assert desk.room.has_room is not is_moving, "its bytes are on the device until the transfer is over"
    if is_moving:
        assert desk.books.next_work() is None
    end(desk, old)
    assert desk.counts() == (4, 0, 0)
    assert desk.room.has_room
    numbers = desk.books.statistics()
    assert (numbers.staged, numbers.taken) == (5, 0)
    assert {cause: count for cause, count in numbers.drops.items() if count} == {"replaced": 1}
    assert desk.begin().key == "a"


@in_every_life
def test_the_origin_of_a_replaced_entry_hears_once_and_when_no_transfer_is_under_way(
    state: EntryState, end: End
) -> None:
    desk, old = desk_with_b_in(state)
    before = ["transferred"] if state in {S.ON_DEVICE, S.DEMOTING} else []
    assert heard(old) == before
    desk.books.add(Entry("b", Heard(), placed_tree("b")))
    if end is not at_once:
        assert heard(old) == before
    end(desk, old)
    assert heard(old) == [*before, "ended: a newer one with its key was staged"]


@in_every_life
def test_an_abandoned_transfer_leaves_no_arrays_with_the_entry(state: EntryState, end: End) -> None:
    desk, old = desk_with_b_in(state)
    if state in MOVING:
        desk.books.add(Entry("b", Heard(), placed_tree("b")))
        end(desk, old)
        assert old.on_device is None


def test_a_rejected_entry_that_is_replaced_was_heard_of_already_and_is_counted_once() -> None:
    desk, old = desk_with_b_in(S.REJECTED)
    assert heard(old) == ["ended: bad leaf"]
    new = Entry("b", Heard(), placed_tree("b"))
    assert desk.books.add(new) is old
    assert desk.keys() == ("a", "b", "c", "z")
    assert heard(old) == ["ended: bad leaf"]
    assert old.state is S.GONE
    assert desk.counts() == (4, 0, 0)
    assert sum(desk.books.statistics().drops.values()) == 1


def test_a_cause_that_never_was_is_not_among_the_drops() -> None:
    desk, old = desk_with_b_in(S.PROMOTING)
    desk.books.add(Entry("b", Heard(), placed_tree("b")))
    end_rejected(desk, old)
    assert dict(desk.books.statistics().drops) == {"replaced": 1}


@in_every_life
def test_a_reset_drops_an_entry_in_any_state_and_its_transfer_does_not_bring_it_back(
    state: EntryState, end: End
) -> None:
    desk, old = desk_with_b_in(state)
    if end is end_stayed:
        end = end_returned
    dropped = desk.books.reset()
    assert [entry.key for entry in dropped] == ["a", "b", "c", "z"]
    assert desk.keys() == ()
    end(desk, old)
    assert desk.keys() == ()
    assert desk.books.find("b") is None
    assert desk.counts() == (0, 0, 0)
    assert desk.room.has_room
    assert heard(old)[-1] == "ended: the trainer reset its queue"
    assert len([said for said in heard(old) if said.startswith("ended")]) == 1
    assert desk.books.next_work() is None


def test_a_reset_starts_the_counts_anew_and_leaves_a_step_its_entry() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.bring()
    taken = desk.take()
    desk.books.reset()
    numbers = desk.books.statistics()
    assert (numbers.staged, numbers.taken, numbers.queued, numbers.on_device, numbers.in_step) == (0, 0, 0, 0, 1)
    assert taken.on_device is not None
    assert heard(taken) == ["transferred"]
    desk.books.dispatched(taken, None)
    assert desk.counts() == (0, 0, 0)


def test_a_step_keeps_its_entry_when_its_key_is_staged_again() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.bring()
    taken = desk.take()
    assert desk.books.add(Entry("a", Heard(), placed_tree("a"))) is None
    assert desk.keys() == ("b", "a")
    assert taken.state is S.IN_STEP
    assert heard(taken) == ["transferred"]
