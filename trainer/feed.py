"""Where a staging queue's entries come from, beside what is staged in process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from forebay.wire import UsageError, printable

from .changed import Changed
from .entry import InProcess, Origin
from .queue_books import QueueBooks

_SHOWN_KEYS = 16


class NotStagedError(UsageError):
    """No entry with that key is queued; the message names those that are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Inlet:
    """What a feed may use of the queue.

    Attributes:
        books: The queue's books.
        changed: The lock that guards them, with which changes are told.
        wake: Has the promoter look for work; called under the lock.
    """

    books: QueueBooks
    changed: Changed
    wake: Callable[[], None]


class Feed(Protocol):
    """A source of entries. All but `open`, `close` and `staged` are called under the queue's lock."""

    remedy: str
    """What to do when an entry does not come."""

    def open(self, inlet: Inlet) -> None:
        """Begins to feed a queue."""

    def close(self) -> None:
        """Ends it."""

    def check(self) -> None:
        """Raises if the queue cannot go on."""

    def asked(self) -> None:
        """Somebody asks for an entry."""

    def absent(self, key: str | None) -> None:
        """An entry that is asked for is not queued; raises unless it may still come."""

    def demand_changed(self) -> None:
        """Entries came or went, or are asked for."""

    def staged(self, key: str) -> Origin:
        """A payload was staged in process under this key; returns whom to tell what becomes of it."""

    def inline(self, key: str) -> Origin:
        """A step trains this key with bytes that it was given; returns whom to tell what becomes of it."""


def not_staged(key: str | None, books: QueueBooks) -> NotStagedError:
    """Makes the error for an entry that is not queued and will not come."""
    wanted = "no micro-batch" if key is None else f"no micro-batch with the key {printable(key)!r}"
    present = books.first_keys(_SHOWN_KEYS)
    more = len(books) - len(present)
    return NotStagedError(
        f"{wanted} is staged",
        got=f"staged keys {present}" + (f" and {more} more" if more else ""),
        remedy="stage it first, or pass it as the payload",
    )


class NoFeed:
    """The feed of a queue that is fed in process alone: what is not there will not come."""

    remedy = "see what the device and the trainer's other threads do"

    def open(self, inlet: Inlet) -> None:
        """See `Feed`."""
        self._books = inlet.books

    def close(self) -> None:
        """See `Feed`."""

    def check(self) -> None:
        """See `Feed`."""

    def asked(self) -> None:
        """See `Feed`."""

    def absent(self, key: str | None) -> None:
        """See `Feed`."""
        raise not_staged(key, self._books)

    def demand_changed(self) -> None:
        """See `Feed`."""

    def staged(self, key: str) -> Origin:  # noqa: ARG002
        """See `Feed`."""
        return InProcess()

    def inline(self, key: str) -> Origin:  # noqa: ARG002
        """See `Feed`."""
        return InProcess()
