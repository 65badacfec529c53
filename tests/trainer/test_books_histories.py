"""Whatever the history of a queue's books, they do what a model says that knows the rules and none of the code."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.trainer import PromotionError
from forebay.trainer.entry import Entry
from forebay.trainer.entry_states import USES_DEVICE, EntryState
from forebay.trainer.queue_books import Await, Demote, Promote, QueueBooks, Work

from .books_desk import Heard, heard, on_device_of, placed_tree
from .fake_transfer import FakeWork

S = EntryState


READY = frozenset({S.ON_DEVICE, S.REJECTED})
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
        unfinished = [work for work in self.running if not work.is_done() and not work.is_lost()]
        work = self.books.next_work()
        if isinstance(work, Await):
            assert expected is not None
            assert work.work in self.running
            assert not work.work.is_lost()
            self.running = self.running[self.running.index(work.work) + 1 :]
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
        if self.inline_transfers or (self.serialize and self.dispatching):
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
        if using < self.cap and not (self.serialize and self.inline_steps):
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

    @precondition(lambda self: self.running)
    @rule(pick=pick)
    def what_it_made_is_given_away(self, pick: int) -> None:
        self.running[pick % len(self.running)].lost = True

    # What always holds.

    @invariant()
    def nothing_is_begun_that_ought_not_to_be(self) -> None:
        if self.moving is None and self._expected() is None:
            work = self.books.next_work()
            if self.serialize and self.inline_transfers and isinstance(work, Await):
                return  # the step needs a quiet device for its own transfer
            assert work is None

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
