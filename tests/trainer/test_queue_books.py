"""The staging queue's decisions, without a thread: the order, the cap, what is promoted next, who hears what."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.trainer import PromotionError
from forebay.trainer.entry import Entry
from forebay.trainer.entry_states import MOVING, USES_DEVICE, EntryState
from forebay.trainer.host_tree import HostTree, PlacedTree
from forebay.trainer.queue_books import Await, Demote, Promote, QueueBooks, Work
from forebay.trainer.transfer import OnDevice

from .fake_transfer import FakeTransfer, FakeWork, payload

S = EntryState
TRANSFER = FakeTransfer()
READY = frozenset({S.ON_DEVICE, S.REJECTED})


def placed_tree(name: str) -> PlacedTree:
    return TRANSFER.place(TRANSFER.take_apart(payload(name)))


def on_device_of(name: str) -> OnDevice:
    placed = placed_tree(name)
    return TRANSFER.complete(placed, TRANSFER.issue(placed))


class Heard:
    """An origin that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def read(self) -> HostTree:
        raise AssertionError("the books read no bytes")

    def transferred(self) -> None:
        self.said.append("transferred")

    def ended(self, reason: str) -> None:
        self.said.append(f"ended: {reason}")


def heard(entry: Entry) -> list[str]:
    assert isinstance(entry.origin, Heard)
    return entry.origin.said


class Desk:
    """Books, and a promoter's hands that do one thing at a time."""

    def __init__(self, max_device_batches: int = 1, *, serialize: bool = False) -> None:
        self.books = QueueBooks(max_device_batches, serialize=serialize)
        self.room = self.books.room

    def add(self, *keys: str) -> list[Entry]:
        entries = [Entry(key, Heard(), placed_tree(key)) for key in keys]
        for entry in entries:
            self.books.add(entry)
        return entries

    def begin(self) -> Entry:
        work = self.books.next_work()
        assert isinstance(work, Promote), work
        return work.entry

    def begin_demotion(self) -> Demote:
        work = self.books.next_work()
        assert isinstance(work, Demote), work
        return work

    def arrive(self, entry: Entry) -> Entry:
        self.books.arrived(entry, on_device_of(entry.key))
        return entry

    def bring(self, count: int = 1) -> list[Entry]:
        return [self.arrive(self.begin()) for _ in range(count)]

    def take(self, key: str | None = None) -> Entry:
        entry = self.books.find(key)
        assert entry is not None
        self.books.take(entry)
        return entry

    def work_of_a_step(self, key: str | None = None) -> FakeWork:
        """Takes an entry and dispatches it; the device works on it until the returned work is finished."""
        work = FakeWork()
        self.books.dispatched(self.take(key), work)
        return work

    # Methods, not properties: mypy would take them to be the same at each call.

    def keys(self) -> tuple[str, ...]:
        return self.books.keys

    def missing(self) -> tuple[str, ...]:
        return self.books.missing

    def allows_transfer(self) -> bool:
        return self.room.allows_transfer

    def allows_dispatch(self) -> bool:
        return self.room.allows_dispatch

    def counts(self) -> tuple[int, int, int]:
        numbers = self.books.statistics()
        return numbers.queued, numbers.on_device, numbers.in_step


# The order, and the cap.


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


# Replaced, in every state.


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


# Keys out of order.


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


# Transfers that fail.


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


def test_an_entry_that_another_step_waits_for_comes_also_while_a_step_transfers_its_own_payload() -> None:
    desk = Desk(1)
    desk.add("a", "b")
    desk.room.inline_begins()
    desk.books.want("b")
    assert desk.begin().key == "b"


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
    desk.room.runs(update)
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
    assert desk.room.is_dispatching
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
    desk.room.inline_begins()
    assert desk.allows_dispatch()
    desk.room.dispatch_begins()
    assert desk.allows_transfer()


# Told to people.


def test_the_books_show_their_entries_and_the_room() -> None:
    desk = Desk(2)
    desk.add("a", "b", "c")
    desk.bring(2)
    desk.take()
    desk.room.runs(FakeWork())
    assert repr(desk.books) == "['b' on_device, 'c' host], 2 of 2 on the device, 1 in a step, 1 running"


def test_books_of_many_entries_show_the_first_eight() -> None:
    desk = Desk(1)
    desk.add(*"abcdefghij")
    first = ", ".join(f"'{key}' host" for key in "abcdefgh")
    assert repr(desk.books) == f"[{first} and 2 more], 0 of 1 on the device, 0 in a step, 0 running"


# Any history.

KEYS = ("a", "b", "c", "d")
a_key = st.sampled_from(KEYS)
a_want = st.sampled_from((*KEYS, None))
pick = st.integers(0, 1 << 16)


class BooksHistories(RuleBasedStateMachine):
    """Any history of a queue's books, against a model that knows the rules and none of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: dict[str, Entry] = {}
        self.resting: set[Entry] = set()
        self.all: list[Entry] = []
        self.in_step: list[Entry] = []
        self.moving: Promote | Demote | None = None
        self.wants: collections.Counter[str | None] = collections.Counter()
        self.running: list[FakeWork] = []
        self.inline_transfers = 0
        self.inline_steps = 0
        self.dispatching = 0
        self.taken: collections.Counter[Entry] = collections.Counter()
        self.dropped: collections.Counter[Entry] = collections.Counter()
        self.rejected: set[Entry] = set()

    @initialize(cap=st.integers(0, 3), serialize=st.booleans())
    def begin(self, cap: int, *, serialize: bool) -> None:
        self.cap = cap or math.inf
        self.serialize = serialize
        self.books = QueueBooks(cap, serialize=serialize)
        for key in KEYS:
            self.stage(key)

    # What the sources do.

    @precondition(lambda self: self.moving is not None or len(self.queued) < len(KEYS))
    @rule(key=a_key)
    def stage(self, key: str) -> None:
        entry = Entry(key, Heard(), placed_tree(key))
        self.all.append(entry)
        old = self.queued.get(key)
        assert self.books.add(entry) is old
        if old is not None:
            self._dropped(old)
        self.queued[key] = entry

    @precondition(lambda self: len(self.queued) > 2)
    @rule(pick=pick)
    def drop(self, pick: int) -> None:
        entry = list(self.queued.values())[pick % len(self.queued)]
        del self.queued[entry.key]
        self.books.drop(entry, "test", "dropped")
        self._dropped(entry)

    @rule(really=st.sampled_from([False] * 9 + [True]))
    def reset(self, *, really: bool) -> None:
        if really:
            assert self.books.reset() == list(self.queued.values())
            for entry in self.queued.values():
                self._dropped(entry)
            self.queued.clear()
            self.resting.clear()

    def _dropped(self, entry: Entry) -> None:
        self.dropped[entry] += 1
        self.resting.discard(entry)

    # What the promoter does.

    @precondition(lambda self: self.moving is None and self._expected() is not None)
    @rule()
    def look(self) -> None:
        expected = self._expected()
        unfinished = [work for work in self.running if not work.is_done()]
        work = self.books.next_work()
        if isinstance(work, Await):
            assert expected is not None
            assert work.work in self.running
            self.running = [running for running in self.running if running is not work.work]
            self.books.room.awaited(work.work)
            return
        assert work == expected
        if work is not None:
            if self.serialize:
                assert not unfinished
            elif self.cap < math.inf:
                assert len(unfinished) <= max(0, 1 - self.inline_steps)
            self.moving = work

    @precondition(lambda self: self.moving is None and self._expected() is not None)
    @rule()
    def carry_out(self) -> None:
        self.look()
        if isinstance(self.moving, Promote):
            self.end_of_a_promotion("arrived")
        elif isinstance(self.moving, Demote):
            self.end_of_a_demotion(stays=False)

    def _expected(self) -> Work | None:
        """Chooses what ought to be done next, device work apart."""
        if self.serialize and (self.inline_transfers or self.dispatching):
            return None
        using = sum(entry.state in USES_DEVICE for entry in self.all)
        waited_for = [entry for entry in self._waited_for() if self._may_come(entry)]
        if waited_for:
            if using < self.cap:
                return Promote(waited_for[0])
            protected = set(self._waited_for())
            for victim in reversed(self.queued.values()):
                if victim.state is S.ON_DEVICE and victim not in protected:
                    return Demote(victim, waited_for[0])
        if self.inline_transfers == 0 and using < self.cap:
            return next((Promote(entry) for entry in self.queued.values() if self._may_come(entry)), None)
        return None

    def _waited_for(self) -> Iterator[Entry]:
        for key in self.wants:
            if key in self.queued:
                yield self.queued[key]
        head = self._head()
        if self.wants[None] and head is not None:
            yield head

    def _head(self) -> Entry | None:
        return next((entry for key, entry in self.queued.items() if not self.wants[key]), None)

    def _may_come(self, entry: Entry) -> bool:
        return entry.state is S.HOST and entry not in self.resting

    @precondition(lambda self: isinstance(self.moving, Promote))
    @rule(end=st.sampled_from(["arrived", "failed", "rejected"]))
    def end_of_a_promotion(self, end: str) -> None:
        assert isinstance(self.moving, Promote)
        entry, self.moving = self.moving.entry, None
        if end == "arrived":
            self.books.arrived(entry, on_device_of(entry.key))
            return
        if end == "failed":
            self.books.failed(entry, PromotionError("no memory"))
            if not self.dropped[entry]:
                self.resting.add(entry)
            return
        self.books.rejected(entry, RuntimeError("bad leaf"), "bad leaf")
        if not self.dropped[entry]:
            self.rejected.add(entry)

    @precondition(lambda self: isinstance(self.moving, Demote))
    @rule(stays=st.booleans())
    def end_of_a_demotion(self, *, stays: bool) -> None:
        assert isinstance(self.moving, Demote)
        work, self.moving = self.moving, None
        if not stays:
            self.books.returned(work.entry, placed_tree(work.entry.key))
            return
        self.books.stayed(work, PromotionError("no memory"))
        if not self.dropped[work.wanted]:
            self.resting.add(work.wanted)

    # What steps do.

    @precondition(lambda self: self.queued and not self.wants and self.moving is None)
    @rule()
    def ask_for_the_last(self) -> None:
        self.want(next(reversed(self.queued)))
        for _ in range(2):
            if self._expected() is not None:
                self.carry_out()

    @precondition(lambda self: self.wants.total() < 3)
    @rule(key=a_want)
    def want(self, key: str | None) -> None:
        self.books.want(key)
        self.wants[key] += 1
        found = self._head() if key is None else self.queued.get(key)
        if found is not None:
            self.resting.discard(found)

    @precondition(lambda self: self.wants)
    @rule(pick=pick)
    def unwant(self, pick: int) -> None:
        self._unwant(list(self.wants)[pick % len(self.wants)])

    def _unwant(self, key: str | None) -> None:
        self.books.unwant(key)
        self.wants[key] -= 1
        if not self.wants[key]:
            del self.wants[key]

    @precondition(lambda self: any(entry.state in READY for entry in self.queued.values()))
    @rule(pick=pick, keyless=st.booleans())
    def take(self, pick: int, *, keyless: bool) -> None:
        ready = [key for key, entry in self.queued.items() if entry.state in READY]
        key = None if keyless else ready[pick % len(ready)]
        expected = self._head() if key is None else self.queued[key]
        assert self.books.find(key) is expected
        if expected is None or expected.state not in READY:
            return
        self.books.take(expected)
        del self.queued[expected.key]
        self.taken[expected] += 1
        if self.wants[key]:
            self._unwant(key)
        if expected not in self.rejected:
            assert expected.on_device is not None
            self.in_step.append(expected)

    @precondition(lambda self: self.in_step)
    @rule(pick=pick, runs=st.booleans())
    def dispatch(self, pick: int, *, runs: bool) -> None:
        entry = self.in_step.pop(pick % len(self.in_step))
        self._dispatched(entry, runs=runs)
        entry.origin.ended("")  # as the step does at its end

    @precondition(lambda self: self.inline_steps)
    @rule(runs=st.booleans())
    def dispatch_inline(self, *, runs: bool) -> None:
        self.inline_steps -= 1
        self._dispatched(None, runs=runs)

    def _dispatched(self, entry: Entry | None, *, runs: bool) -> None:
        work = FakeWork() if runs else None
        self.running += [] if work is None else [work]
        self.books.dispatched(entry, work)
        self.resting.clear()

    @precondition(lambda self: not self.inline_transfers)
    @rule()
    def begin_inline(self) -> None:
        self.inline_transfers += 1
        self.books.room.inline_begins()

    @precondition(lambda self: self.inline_transfers)
    @rule(in_step=st.booleans())
    def end_inline(self, *, in_step: bool) -> None:
        self.inline_transfers -= 1
        self.inline_steps += in_step
        self.books.room.inline_ends(in_step=in_step)

    @precondition(lambda self: self.serialize and not self.dispatching and self.books.room.allows_dispatch)
    @rule()
    def begin_dispatching(self) -> None:
        assert self.moving is None
        assert not self.inline_transfers
        self.dispatching += 1
        self.books.room.dispatch_begins()

    @precondition(lambda self: self.dispatching)
    @rule()
    def end_dispatching(self) -> None:
        self.dispatching -= 1
        self.books.room.dispatch_ends()

    @precondition(lambda self: self.running)
    @rule(pick=pick)
    def device_finishes(self, pick: int) -> None:
        self.running[pick % len(self.running)].finish()

    # What always holds.

    @invariant()
    def nothing_is_begun_that_ought_not_to_be(self) -> None:
        if self.moving is None and self._expected() is None:
            assert self.books.next_work() is None

    @invariant()
    def the_device_holds_no_more_than_the_cap(self) -> None:
        using = {entry for entry in self.all if entry.state in USES_DEVICE}
        assert len(using) <= self.cap
        with_arrays = {entry for entry in self.all if entry.on_device and entry.state is not S.GONE}
        assert with_arrays <= using

    @invariant()
    def what_is_on_the_host_keeps_its_bytes(self) -> None:
        assert all(entry.placed is not None for entry in self.all if entry.state in {S.HOST, S.PROMOTING})

    @invariant()
    def the_order_is_kept(self) -> None:
        assert self.books.keys == tuple(self.queued)
        assert all(self.books.find(key) is entry for key, entry in self.queued.items())

    @invariant()
    def the_counts_are_right(self) -> None:
        numbers = self.books.statistics()
        on_device = sum(entry.state is S.ON_DEVICE for entry in self.queued.values())
        assert numbers.on_device == on_device
        assert numbers.queued == len(self.queued) - on_device
        assert numbers.in_step == len(self.in_step)
        assert numbers.inline_steps == self.inline_steps
        assert (
            min(numbers.staged, numbers.taken, numbers.failures, numbers.demotions, *numbers.drops.values()) >= 0
        )

    @invariant()
    def every_entry_is_taken_or_dropped_or_queued(self) -> None:
        queued = set(self.queued.values())
        assert all((entry in queued) + self.taken[entry] + self.dropped[entry] == 1 for entry in self.all)

    @invariant()
    def every_origin_hears_of_its_transfer_and_of_its_end_once(self) -> None:
        for entry in self.all:
            said = heard(entry)
            ends = [words for words in said if words.startswith("ended")]
            has_ended = entry.state in {S.GONE, S.REJECTED}
            assert len(ends) == has_ended, (entry, said)
            assert said.count("transferred") <= 1, (entry, said)
            assert not ends or said[-1:] == ends, (entry, said)


TestBooksHistories = BooksHistories.TestCase
TestBooksHistories.settings = settings(max_examples=200, stateful_step_count=60)
