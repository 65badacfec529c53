"""The daemon feed's books, without a daemon: what is asked for, held, released and reported."""

from __future__ import annotations

import queue as queues
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.trainer import PromotionError, StagingQueue, TrainerSettings, daemon_feed
from forebay.trainer.conversation import Holdings, Report
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.entry import Entry, InProcess
from forebay.trainer.entry_states import EntryState
from forebay.trainer.feed import Inlet
from forebay.trainer.host_tree import HostTree, host_tree_of
from forebay.trainer.queue_books import Demote, Promote, QueueBooks
from forebay.wire import (
    BrokenError,
    Finished,
    ForebayError,
    KeyGone,
    Lend,
    Limits,
    MicroBatchGoneError,
    MicroBatchState,
    Promoted,
    TreeError,
    default_registry,
)

from .fake_transfer import WAIT_S, FakeTransfer, payload

MOST_SLOTS = 1024
"""No daemon has more."""
RESET = "the trainer reset its queue"
REPLACED = "a newer one with its key was staged"


def lend(key: str, slot: int = 0, generation: int = 1, *, on_credit: bool = True) -> Lend:
    return Lend(slot=slot, generation=generation, key=key, file_bytes=4096, on_credit=on_credit)


def promoted(key: str, slot: int = 0, generation: int = 1) -> Promoted:
    return Promoted(holder="", key=key, slot=slot, generation=generation)


def finished(
    key: str, slot: int = -1, generation: int = 1, *, reason: str = "", was_read: bool = True
) -> Finished:
    attempt = f"attempt of {key}" if was_read else ""
    return Finished(holder="", key=key, attempt=attempt, slot=slot, generation=generation, reason=reason)


def gone(key: str, state: MicroBatchState = MicroBatchState.CONSUMED) -> KeyGone:
    return KeyGone(key=key, state=state, reason="it was trained already")


class RecordedLink:
    """Stands where the connection to the daemon stands, and keeps what is said.

    Attributes:
        reports: What was reported.
        demands: What was demanded each time that it was to be stated.
        unconfirmed: What the daemon never confirms.
        refusal: What attaching raises.
    """

    state = "attached"

    def __init__(self) -> None:
        self.endpoint = ""
        self.reports: list[Report] = []
        self.demands: queues.SimpleQueue[tuple[int, tuple[str, ...], bool]] = queues.SimpleQueue()
        self.unconfirmed: tuple[Report, ...] = ()
        self.refusal: ForebayError | None = None
        self.closed = 0

    def made(
        self, endpoint: str, _queue: str, holdings: Holdings, broken: Callable[[ForebayError], None]
    ) -> RecordedLink:
        self.endpoint, self._holdings, self.broken = endpoint, holdings, broken
        return self

    def attach(self, _timeout_s: float) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.attached("pool", same_pool=False)

    def attached(self, pool: str, *, same_pool: bool) -> None:
        self._holdings.attached(Path("/dev/shm") / pool, Limits(), same_pool=same_pool)

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def demand_changed(self) -> None:
        self.demands.put(self._holdings.demand())

    def last_demand(self) -> tuple[int, tuple[str, ...], bool] | None:
        """Returns what was demanded last since the last call; None if nothing was stated."""
        last = None
        while not self.demands.empty():
            last = self.demands.get()
        return last

    def until_demanded(self, *keys: str) -> None:
        """Waits until these keys are demanded."""
        while self.demands.get(timeout=WAIT_S)[1] != keys:
            pass

    def close(self) -> tuple[Report, ...]:
        self.closed += 1
        return self.unconfirmed


class FakeReader:
    """A slot holds a payload that is named after its key."""

    def __init__(self, pool: Path, limits: Limits) -> None:
        self.pool, self.limits = pool, limits

    def read(self, lend: Lend) -> tuple[str, HostTree]:
        return f"attempt of {lend.key}", host_tree_of(payload(lend.key), default_registry)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> RecordedLink:
    link = RecordedLink()
    monkeypatch.setattr(daemon_feed, "DaemonLink", link.made)
    monkeypatch.setattr(daemon_feed, "SlotReader", FakeReader)
    return link


class Desk:
    """A feed and its queue's books; what the queue's threads would do is done by hand."""

    def __init__(self, cap: int = 1, *, asked: bool = True) -> None:
        self.feed = DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
        self.books = QueueBooks(cap, serialize=False)
        self.transfer = FakeTransfer()
        self.feed.open(Inlet(self.books, threading.Condition(), lambda: None))
        if asked:
            self.feed.asked()

    def begin(self, key: str) -> Entry:
        """Begins the next transfer, which must be this key's."""
        work = self.books.next_work()
        assert isinstance(work, Promote)
        assert work.entry.key == key
        return work.entry

    def arrive(self, entry: Entry) -> None:
        """Completes a transfer."""
        placed = entry.placed or self.transfer.place(entry.origin.read())
        self.books.arrived(entry, self.transfer.complete(placed, self.transfer.issue(placed)))

    def promote(self, key: str) -> Entry:
        entry = self.begin(key)
        self.arrive(entry)
        return entry

    def take(self, key: str | None = None) -> Entry:
        """Hands out what is on the device, or rejected."""
        entry = self.books.find(key)
        assert entry is not None
        self.books.take(entry)
        return entry

    def dispatch(self, entry: Entry) -> None:
        self.books.dispatched(entry, None)

    def train(self, key: str) -> None:
        """Takes, dispatches and finishes what is on the device."""
        entry = self.take()
        assert entry.key == key
        self.dispatch(entry)
        entry.origin.ended("")

    def stage(self, key: str) -> Entry | None:
        """Stages in process; returns what that replaced."""
        tree = host_tree_of(payload(key), default_registry)
        return self.books.add(Entry(key, InProcess(), self.transfer.place(tree)))

    def begin_to_demote(self, key: str, wanted: str) -> Demote:
        """Begins to bring a key back to the host for another, which somebody waits for."""
        work = self.books.next_work()
        assert isinstance(work, Demote)
        assert (work.entry.key, work.wanted.key) == (key, wanted)
        return work

    def demote_for(self, key: str, wanted: str) -> Entry:
        work = self.begin_to_demote(key, wanted)
        assert work.entry.on_device is not None
        self.books.returned(work.entry, self.transfer.fetch(work.entry.on_device))
        return work.entry


@pytest.fixture
def desk(link: RecordedLink) -> Desk:  # noqa: ARG001 - must be in place first
    return Desk()


@pytest.fixture
def queue(link: RecordedLink) -> Iterator[StagingQueue]:  # noqa: ARG001 - must be in place first
    feed = DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
    with StagingQueue(FakeTransfer(), settings=TrainerSettings(stage_batch="stage"), feed=feed) as queue:
        yield queue


def feed_of(queue: StagingQueue) -> DaemonFeed:
    feed = queue._state.feed
    assert isinstance(feed, DaemonFeed)
    return feed


def transfer_of(queue: StagingQueue) -> FakeTransfer:
    transfer = queue._state.transfer
    assert isinstance(transfer, FakeTransfer)
    return transfer


# --- what is asked for ---


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
    with queue._state.changed:
        transfer.let_go()
        assert queue._state.changed.wait_for(lambda: queue.statistics.on_device == 1, WAIT_S)
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


# --- what is lent, held and released ---


def test_a_slot_is_held_until_its_transfer_is_complete_and_then_released_once(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    assert (desk.feed.held(), desk.feed.on_device()) == (((3, 7),), ())
    entry = desk.begin("a")
    entry.origin.read()
    # With a daemon that comes anew it must be known as both: it may be on the device by then.
    assert (desk.feed.held(), desk.feed.on_device()) == (((3, 7),), (("a", "attempt of a"),))
    assert link.reports == []
    desk.arrive(entry)
    assert (desk.feed.held(), desk.feed.on_device()) == ((), (("a", "attempt of a"),))
    desk.train("a")
    assert link.reports == [promoted("a", 3, 7), finished("a", generation=7)]


def test_what_is_finished_is_no_longer_on_the_device_and_tells_its_attempt(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a"))
    desk.promote("a")
    entry = desk.take()
    desk.dispatch(entry)
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    entry.origin.ended("it raised")
    assert desk.feed.on_device() == ()
    assert link.reports[-1] == finished("a", reason="it raised")


def test_a_slot_that_is_lent_again_in_the_same_generation_is_not_entered_twice(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a"))
    for step in (lambda: None, lambda: desk.promote("a"), desk.take):
        step()
        keys, said = desk.books.keys, list(link.reports)
        link.attached("pool", same_pool=True)
        desk.feed.lent(lend("a", on_credit=False))
        assert (desk.books.keys, link.reports) == (keys, said)
    assert desk.books.next_work() is None
    desk.feed.lent(lend("b", generation=2))
    assert desk.feed.held() == ((0, 2),)
    assert desk.books.keys == ("b",)


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
    assert link.reports == [finished("a")]


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
    assert isinstance(entry.origin, daemon_feed.LentSlot)
    assert entry.origin.reader.limits is limits
    assert link.reports == []


# --- transfers that fail ---


def test_a_promotion_that_may_succeed_later_keeps_its_slot_and_its_place(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a", 0))
    desk.feed.lent(lend("b", 1))
    error = PromotionError("no room on the device")
    desk.books.failed(desk.begin("a"), error)
    assert sorted(desk.feed.held()) == [(0, 1), (1, 1)]
    assert desk.feed.on_device() == ()
    assert desk.books.keys == ("a", "b")
    head = desk.books.find(None)
    assert head is not None
    assert head.failure is error
    assert link.reports == []
    desk.books.want(None)
    desk.promote("a")
    assert link.reports == [promoted("a", 0)]
    desk.train("a")


def test_a_promotion_that_cannot_succeed_releases_its_slot_with_the_reason(desk: Desk, link: RecordedLink) -> None:
    desk.feed.lent(lend("a", 2, 5))
    error = TreeError("no such class")
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.rejected(entry, error, "no such class")
    assert link.reports == [finished("a", 2, 5, reason="no such class")]
    assert (desk.feed.held(), desk.feed.on_device()) == ((), ())
    taken = desk.take()
    assert (taken.key, taken.failure) == ("a", error)
    assert desk.books.next_work() is None
    assert len(link.reports) == 1


# --- brought back to the host ---


def test_what_was_brought_back_to_the_host_counts_as_on_the_device_for_the_daemon(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.books.want("b")
    desk.feed.lent(lend("b", 1, on_credit=False))
    entry = desk.demote_for("a", wanted="b")
    assert entry.state is EntryState.HOST
    # Its slot is released, and may hold another micro-batch: only this trainer still has its bytes.
    assert desk.feed.held() == ((1, 1),)
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    assert link.reports == [promoted("a", 0)]


def test_what_comes_to_the_device_a_second_time_releases_its_slot_no_second_time(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 0))
    desk.promote("a")
    desk.books.want("b")
    desk.feed.lent(lend("b", 1, on_credit=False))
    desk.demote_for("a", wanted="b")
    desk.promote("b")
    desk.dispatch(desk.take("b"))
    desk.promote("a")
    desk.train("a")
    said = [report for report in link.reports if report != finished("b")]
    assert said == [promoted("a", 0), promoted("b", 1), finished("a")]


# --- two sources, one key ---


def test_a_lent_entry_that_is_replaced_in_process_releases_its_slot_and_says_so_once(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    desk.stage("a")
    assert link.reports == [finished("a", 4, 2, reason=REPLACED, was_read=False)]
    assert (desk.feed.held(), desk.feed.on_device()) == ((), ())
    desk.promote("a")
    desk.train("a")
    assert len(link.reports) == 1


def test_a_lent_entry_on_the_device_that_is_replaced_in_process_says_so_and_releases_nothing_twice(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    desk.promote("a")
    desk.stage("a")
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2, reason=REPLACED)]


def test_a_lent_entry_that_is_replaced_in_mid_transfer_keeps_its_slot_until_that_is_over(
    desk: Desk, link: RecordedLink
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    entry = desk.begin("a")
    entry.origin.read()
    desk.stage("a")
    assert link.reports == []
    assert desk.feed.held() == ((4, 2),)
    desk.arrive(entry)
    assert link.reports == [finished("a", 4, 2, reason=REPLACED)]
    assert desk.books.keys == ("a",)


def test_an_entry_staged_in_process_is_replaced_by_a_lend_in_its_place(link: RecordedLink) -> None:
    desk = Desk(3)
    desk.stage("a")
    desk.stage("b")
    desk.feed.lent(lend("a", 4, 2))
    assert desk.books.keys == ("a", "b")
    assert desk.feed.held() == ((4, 2),)
    desk.promote("a")
    desk.train("a")
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2)]


# --- reset ---


def test_reset_releases_the_slots_and_reports_each_entry_dropped_once(link: RecordedLink) -> None:
    desk = Desk(2)
    for slot, key in enumerate("abc"):
        desk.feed.lent(lend(key, slot))
    desk.promote("a")
    in_step = desk.take()
    desk.promote("b")
    del link.reports[:]
    desk.books.reset()
    assert desk.books.keys == ()
    assert link.reports == [
        finished("b", reason=RESET),
        finished("c", 2, reason=RESET, was_read=False),
    ]
    assert desk.feed.held() == ()
    # The step that has its batch keeps it.
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    desk.dispatch(in_step)
    in_step.origin.ended("")
    assert link.reports[2:] == [finished("a")]


@pytest.mark.parametrize("ending", ["complete", "failed", "rejected"])
def test_reset_in_mid_transfer_keeps_the_slot_until_the_transfer_is_over_and_then_reports_it_once(
    desk: Desk, link: RecordedLink, ending: str
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.reset()
    assert link.reports == []
    assert desk.feed.held() == ((4, 2),)
    match ending:
        case "complete":
            desk.arrive(entry)
        case "failed":
            desk.books.failed(entry, PromotionError("no room"))
        case _:
            desk.books.rejected(entry, TreeError("no such class"), "no such class")
    assert link.reports == [finished("a", 4, 2, reason=RESET)]
    assert (desk.feed.held(), desk.feed.on_device(), desk.books.keys) == ((), (), ())


@pytest.mark.parametrize("ending", ["returned", "stayed"])
def test_reset_while_an_entry_is_brought_back_reports_it_once_when_that_is_over(
    desk: Desk, link: RecordedLink, ending: str
) -> None:
    desk.feed.lent(lend("a", 4, 2))
    desk.promote("a")
    desk.books.want("b")
    desk.feed.lent(lend("b", 5, 2, on_credit=False))
    work = desk.begin_to_demote("a", wanted="b")
    del link.reports[:]
    desk.books.reset()
    assert link.reports == [finished("b", 5, 2, reason=RESET, was_read=False)]
    assert desk.feed.on_device() == (("a", "attempt of a"),)
    if ending == "returned":
        assert work.entry.on_device is not None
        desk.books.returned(work.entry, desk.transfer.fetch(work.entry.on_device))
    else:
        desk.books.stayed(work, PromotionError("it could not be brought back"))
    assert link.reports[1:] == [finished("a", generation=2, reason=RESET)]
    assert desk.feed.on_device() == ()


def test_reset_while_a_real_transfer_is_under_way_reports_the_slot_when_that_is_over(
    link: RecordedLink, queue: StagingQueue
) -> None:
    transfer = transfer_of(queue)
    transfer.hold()
    feed_of(queue).lent(lend("a", 4, 2))
    transfer.wait_until_begun()
    queue.reset()
    assert link.reports == []
    transfer.let_go(all_after=True)
    # The queue promotes one at a time, so this one comes after the one that was dropped.
    queue.stage(payload("b"), key="b")
    queue.take("b", timeout_s=WAIT_S).close()
    assert link.reports == [finished("a", 4, 2, reason=RESET), finished("b", generation=0, was_read=False)]
    assert transfer.live == []


def test_reset_has_the_demand_stated_anew(link: RecordedLink, queue: StagingQueue) -> None:
    feed = feed_of(queue)
    feed.asked()
    feed.lent(lend("a"))
    assert feed.demand() == (1, (), False)
    link.last_demand()
    queue.reset()
    assert link.last_demand() == (2, (), True)


# --- keys that are trained by bytes that a step was given ---


def test_a_key_that_is_trained_inline_is_reported_consumed_at_the_end_of_its_step(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with queue.put(payload("a"), key="a") as batch:
        batch.dispatched()
        assert link.reports == []
    assert link.reports == [Finished(holder="", key="a")]


def test_a_lend_that_comes_after_its_key_was_trained_inline_is_ended_as_consumed_and_not_entered(
    link: RecordedLink, queue: StagingQueue
) -> None:
    queue.put(payload("a"), key="a").close()
    del link.reports[:]
    feed = feed_of(queue)
    feed.lent(lend("a", 4, 2))
    assert queue.keys == ()
    assert link.reports == [finished("a", 4, 2, was_read=False)]
    assert (feed.held(), feed.on_device()) == ((), ())
    assert queue.statistics.staged == 0


def test_a_lend_that_comes_while_its_key_is_trained_inline_is_ended_as_consumed(
    desk: Desk, link: RecordedLink
) -> None:
    origin = desk.feed.inline("a")
    desk.feed.lent(lend("a", 4, 2))
    origin.ended("")
    assert desk.books.keys == ()
    assert finished("a", 4, 2, was_read=False) in link.reports
    assert all(isinstance(report, Finished) and not report.reason for report in link.reports)
    assert desk.feed.held() == ()


def test_a_lend_in_mid_transfer_when_its_key_was_trained_inline_is_ended_as_consumed_when_that_is_over(
    desk: Desk, link: RecordedLink
) -> None:
    origin = desk.feed.inline("a")
    desk.feed.lent(lend("a", 4, 2))
    entry = desk.begin("a")
    entry.origin.read()
    origin.ended("")
    assert desk.books.keys == ()
    assert desk.feed.held() == ((4, 2),)
    assert link.reports == [Finished(holder="", key="a")]
    desk.arrive(entry)
    assert link.reports[1:] == [finished("a", 4, 2)]


def test_the_next_is_asked_for_when_a_lend_is_not_entered_since_its_key_was_trained_inline(
    link: RecordedLink, queue: StagingQueue
) -> None:
    queue.put(payload("a"), key="a").close()
    assert link.last_demand() == (1, (), True)
    feed_of(queue).lent(lend("a"))
    assert link.last_demand() == (2, (), True), "else nothing is lent before the demand is repeated"


def test_the_next_is_asked_for_when_an_inline_step_ends_what_was_lent_for_its_key(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with queue.put(payload("a"), key="a"):
        feed_of(queue).lent(lend("a"))
    assert queue.keys == ()
    assert link.last_demand() == (2, (), True), "else nothing is lent before the demand is repeated"


def test_an_inline_step_that_failed_leaves_what_was_lent_for_its_key_meanwhile(
    desk: Desk, link: RecordedLink
) -> None:
    origin = desk.feed.inline("a")
    desk.feed.lent(lend("a", 4, 2))
    origin.ended("the trainer raised ValueError")
    assert desk.books.keys == ("a",)
    assert link.reports == []
    desk.promote("a")
    desk.train("a")
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2)]


def test_an_inline_step_that_raises_reports_nothing_and_its_key_may_be_lent_later(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with pytest.raises(ZeroDivisionError), queue.put(payload("a"), key="a"):
        raise ZeroDivisionError
    assert link.reports == []
    feed_of(queue).lent(lend("a", 4, 2))
    with queue.take(timeout_s=WAIT_S) as batch:
        assert batch.key == "a"
    assert link.reports == [promoted("a", 4, 2), finished("a", generation=2)]


def test_a_payload_without_a_key_is_reported_to_nobody(link: RecordedLink, queue: StagingQueue) -> None:
    queue.put(payload("a")).close()
    assert link.reports == []


def test_a_lent_entry_that_a_step_has_other_bytes_for_is_dropped_and_told_once(
    link: RecordedLink, queue: StagingQueue
) -> None:
    feed_of(queue).lent(lend("a", 4, 2))
    with queue._state.changed:
        assert queue._state.changed.wait_for(lambda: queue.statistics.on_device == 1, WAIT_S)
    with queue.put(payload("a", more=1), key="a") as batch:
        assert batch.tree["more"] == 1
    about = [report for report in link.reports if isinstance(report, Finished) and report.attempt]
    assert about == [finished("a", generation=2, reason="the step was given other bytes for its key")]
    del link.reports[:]
    feed_of(queue).lent(lend("a", 4, 3))
    assert queue.keys == (), "else it would be trained twice"
    assert link.reports == [finished("a", 4, 3, was_read=False)]


def test_no_more_keys_that_were_trained_inline_are_remembered_than_a_daemon_remembers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_feed, "_REMEMBERED_KEYS", 2)
    for key in "abc":
        desk.feed.inline(key).ended("")
    for slot, key in enumerate("abc"):
        desk.feed.lent(lend(key, slot))
    assert desk.books.keys == ("a",)


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
