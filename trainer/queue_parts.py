"""What the parts of a staging queue share: its books, the lock that guards them, and how to wait."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from forebay.sockets import tell
from forebay.wire import ClosedError, Event, LocalError, WaitTimeoutError

from .changed import Changed
from .feed import Feed, Inlet, NoFeed
from .promoter import Promoter
from .queue_books import QueueBooks
from .settings import StageMode, TrainerSettings
from .transfer import Transfer

log = logging.getLogger("forebay.trainer")

T = TypeVar("T")

_SAY_AFTER_S = 10.0
"""A wait that is longer than this is said while it lasts: nobody should have to guess why a trainer waits."""


class QueueParts:
    """What the parts of one queue share.

    Args:
        transfer: Ways between host and device.
        settings: The cap and the mode.
        feed: The other source of entries.

    Attributes:
        changed: The bookkeeping lock, with which changes are told: held for microseconds, never across a transfer
            or a wait for the device.
        link: The transfer lock: one transfer at a time. Nobody waits for it with the bookkeeping lock in hand.
        closed: Whether the queue is closed.
    """

    def __init__(self, transfer: Transfer, settings: TrainerSettings, feed: Feed) -> None:
        self.mode = settings.mode
        self.serialize = settings.mode is StageMode.SERIALIZE
        self.transfer = transfer
        self.feed = feed
        self.changed = Changed()
        self.link = threading.Lock()
        self.books = QueueBooks(settings.max_device_batches, serialize=self.serialize)
        self.promoter = Promoter(self.books, self.changed, transfer, self.link, feed.demand_changed)
        self.closed = False

    def __repr__(self) -> str:
        # A queue does not care for `off`; an engine that does says so itself.
        mode = "" if self.mode is StageMode.OFF else f"{self.mode}, "
        with self.changed:
            return f"StagingQueue({mode}{self.books!r}, {self.promoter!r})"

    def open_feed(self) -> None:
        """Begins to be fed."""
        self.feed.open(Inlet(self.books, self.changed, self.promoter.wake))

    @property
    def is_in_use(self) -> bool:
        """Whether something began that must be ended."""
        return not self.closed and (self.promoter.has_started or self.is_fed)

    @property
    def is_fed(self) -> bool:
        """Whether there is another source of entries."""
        return not isinstance(self.feed, NoFeed)

    # Under the lock.

    def check_open(self) -> None:
        """Raises ClosedError after the end, and what the feed or the promoter broke by."""
        if self.closed:
            raise ClosedError("the staging queue is closed", remedy="use it inside its with block")
        self.feed.check()
        if self.promoter.failure is not None:
            raise LocalError(
                f"the staging queue's promoter ended by a mistake of its own: {self.promoter.failure!r}",
                remedy="please report this; what is queued is lost to this process",
            ) from self.promoter.failure

    def wait(self, look: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """Waits until something is there.

        Args:
            look: Returns it, or None; called at every change.
            timeout_s: Seconds to wait.
            what: What is waited for, for people.

        Raises:
            WaitTimeoutError: It was not there in time.
            ClosedError: The queue was closed.
        """

        def look_while_open() -> T | None:
            self.check_open()
            return look()

        found = self.changed.wait_for(look_while_open, min(timeout_s, _SAY_AFTER_S))
        if found is None and timeout_s > _SAY_AFTER_S:
            self._say_that_it_takes_long(what)
            found = self.changed.wait_for(look_while_open, min(timeout_s - _SAY_AFTER_S, threading.TIMEOUT_MAX))
        if found is None:
            raise self.timeout(timeout_s, what)
        return found

    def _say_that_it_takes_long(self, what: str) -> None:
        state = repr(self)
        # A log handler may be slow, and everybody else needs the lock.
        self.changed.release()
        try:
            tell(log, logging.WARNING, Event.STAGE_WAIT, waited_s=_SAY_AFTER_S, what=what, queue=state)
        finally:
            self.changed.acquire()

    def timeout(self, timeout_s: float, what: str) -> WaitTimeoutError:
        """Makes the error for a wait that took too long."""
        remedy = self.feed.remedy
        if self.books.room.is_held_by_steps:
            remedy = "dispatch or close the batch that a step holds, or raise TUNIX_STAGE_MAX_DEVICE_BATCHES"
        return WaitTimeoutError(f"waited {timeout_s:g} s for {what}; {self!r}", remedy=remedy)

    @contextlib.contextmanager
    def wanting(self, key: str | None) -> Iterator[None]:
        """Makes it known that somebody waits for an entry."""
        self.books.want(key)
        try:
            self.feed.asked()
            self.feed.demand_changed()
            self.promoter.wake()
            yield
        finally:
            self.books.unwant(key)
            self.feed.demand_changed()
            self.promoter.wake()
