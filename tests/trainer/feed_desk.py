"""A daemon feed with its queue's books, on a link without a daemon that keeps what is said."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable
from pathlib import Path

from forebay.trainer import StagingQueue
from forebay.trainer.changed import Changed
from forebay.trainer.conversation import Holdings, Report
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.entry import Entry, InProcess
from forebay.trainer.feed import Inlet
from forebay.trainer.host_tree import HostTree, host_tree_of
from forebay.trainer.queue_books import Demote, Promote, QueueBooks
from forebay.wire import Finished, ForebayError, KeyGone, Lend, Limits, MicroBatchState, Promoted, default_registry

from .fake_transfer import FakeTransfer, payload
from .waiting import WAIT_S

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

    def report(self, make: Callable[[], Report | None]) -> None:
        report = make()
        if report is not None:
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


class Desk:
    """A feed and its queue's books; what the queue's threads would do is done by hand."""

    def __init__(self, cap: int = 1, *, asked: bool = True) -> None:
        self.feed = DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
        self.books = QueueBooks(cap, serialize=False)
        self.transfer = FakeTransfer()
        self.changed = Changed()
        self.feed.open(Inlet(self.books, self.changed, lambda: None))
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


def feed_of(queue: StagingQueue) -> DaemonFeed:
    feed = queue._parts.feed
    assert isinstance(feed, DaemonFeed)
    return feed


def transfer_of(queue: StagingQueue) -> FakeTransfer:
    transfer = queue._parts.transfer
    assert isinstance(transfer, FakeTransfer)
    return transfer
