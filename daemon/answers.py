"""Answers that change next to nothing: to a hello, and to who asks for the pool, the status or a micro-batch."""

from __future__ import annotations

import dataclasses

from forebay.wire import (
    GONE,
    PROTOCOL_VERSION,
    Await,
    DataProtection,
    FindPool,
    GetStatus,
    Hello,
    PoolFound,
    RefusalCode,
    Status,
    Welcome,
    printable,
)

from .actions import Address, Reply
from .book import Book
from .staleness import Staleness
from .status import describe


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a daemon says of itself.

    Attributes:
        software: Version of this package.
        pool: The pool's folder, as told to trainers.
        data_endpoint: Where chunks go, as told to orchestrators.
        data_protection: What guards it, as told to them.
        started: Monotonic second of its start.
    """

    software: str
    pool: str
    data_endpoint: str
    data_protection: DataProtection
    started: float


class Answers:
    """Answers questions.

    Args:
        book: The shared books.
        staleness: Tells how long micro-batches are fresh.
        about: This daemon.
    """

    def __init__(self, book: Book, staleness: Staleness, about: About) -> None:
        self._book = book
        self._staleness = staleness
        self._about = about

    def hello(self, sender: Address, request: Hello, now: float) -> None:
        """Knows an orchestrator or inspector from now on, if it speaks this protocol."""
        book = self._book
        if request.version != PROTOCOL_VERSION:
            words = f"client speaks protocol {request.version}, daemon {PROTOCOL_VERSION}"
            book.out.refuse(sender, request.id, RefusalCode.VERSION, words)
            return
        book.peers.greet(sender, request.peer, now)
        welcome = Welcome(
            id=request.id,
            version=PROTOCOL_VERSION,
            software=self._about.software,
            epoch=book.epoch,
            peer=book.me,
            data_endpoint=self._about.data_endpoint,
            limits=book.settings.limits,
            data_protection=self._about.data_protection,
        )
        book.out.do(Reply(sender, welcome))

    def find_pool(self, sender: Address, request: FindPool) -> None:
        """Tells a trainer where the pool is."""
        found = PoolFound(
            id=request.id,
            version=PROTOCOL_VERSION,
            software=self._about.software,
            epoch=self._book.epoch,
            pool=self._about.pool,
        )
        self._book.out.do(Reply(sender, found))

    def status(self, sender: Address, request: GetStatus, now: float) -> None:
        """Tells an inspector what there is."""
        self._book.out.do(Reply(sender, self.described(request.id, now)))

    def described(self, request_id: int, now: float) -> Status:
        """Returns what there is."""
        return describe(
            self._book,
            self._staleness,
            request_id,
            software=self._about.software,
            pool=self._about.pool,
            started=self._about.started,
            now=now,
        )

    def wait(self, sender: Address, request: Await, now: float) -> None:
        """Tells when a micro-batch has reached a state, or that it never will."""
        book = self._book
        if request.until in GONE:
            words = f"nobody can wait until a micro-batch is {request.until}; that is told to all who wait"
            book.out.refuse(sender, request.id, RefusalCode.BAD_REQUEST, words)
            return
        batch = book.find(request.queue, request.key)
        if batch is None:
            key, queue = printable(request.key), printable(request.queue)
            words = f"no micro-batch {key!r} in queue {queue!r}; stage it first"
            book.out.refuse(sender, request.id, RefusalCode.UNKNOWN_KEY, words)
            return
        book.waits.wait_for(batch, sender, request, now)
