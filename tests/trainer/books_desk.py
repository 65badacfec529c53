"""A queue's books without a thread, and the hands that do one thing at a time."""

from __future__ import annotations

from forebay.trainer.entry import Entry
from forebay.trainer.host_tree import HostTree, PlacedTree
from forebay.trainer.queue_books import Demote, Promote, QueueBooks
from forebay.trainer.transfer import OnDevice

from .fake_transfer import FakeTransfer, FakeWork, payload

TRANSFER = FakeTransfer()


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
