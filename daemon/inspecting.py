"""Answers to inspectors: what is known of one micro-batch, what happened, and what happens next."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from forebay.shm import Envelope
from forebay.wire import (
    Events,
    GetEvents,
    MicroBatchState,
    Moment,
    Peek,
    Peeked,
    RefusalCode,
    Refused,
    printable,
)

from .actions import Address, Reply
from .book import Book
from .history import Kept
from .micro_batch import MicroBatch
from .staleness import Staleness

_MAX_FOLLOWERS = 64
_PERIOD_S = 0.1
"""Between two looks for those who follow: thousands of moments a second come in a few answers."""


@dataclasses.dataclass(slots=True)
class _Follower:
    """A question about what comes next, and how far the moments were looked through for it."""

    request: GetEvents
    deadline: float
    looked: int


@dataclasses.dataclass(frozen=True, slots=True)
class ToldMoments:
    """What happened, as the loop hands it to another thread.

    Attributes:
        kept: The moments that were asked for.
        oldest: Number of the oldest moment that is kept.
        now_s: The daemon's monotonic second.
        epoch: This run of the daemon.
    """

    kept: Kept
    oldest: int
    now_s: float
    epoch: str


class Inspecting:
    """The inspectors' side of the ledger.

    Args:
        book: The shared books.
        staleness: Tells how long micro-batches are fresh.
    """

    def __init__(self, book: Book, staleness: Staleness) -> None:
        self._book = book
        self._staleness = staleness
        self._followers: dict[Address, _Follower] = {}
        self._looked_at = 0.0

    # One micro-batch.

    def peek(self, sender: Address, request: Peek, now: float) -> None:
        """Tells what is known of a micro-batch."""
        batch = self._book.find(request.queue, request.key)
        if batch is None:
            key, queue = printable(request.key), printable(request.queue)
            words = f"no micro-batch {key!r} in queue {queue!r}: it was never offered there, or is forgotten"
            # Neither counted nor logged: nobody is refused anything, and whoever looks raises no alarm.
            self._book.out.reply(sender, Refused(id=request.id, code=RefusalCode.UNKNOWN_KEY, words=words))
            return
        self._book.out.do(Reply(sender, self._peeked(batch, request.id, now)))

    def _peeked(self, batch: MicroBatch, request_id: int, now: float) -> Peeked:
        book = self._book
        is_alive = book.batches.get((batch.queue, batch.key)) is batch
        has_slot = batch.slot >= 0
        attachment = book.attachments.holding(batch) if is_alive else None
        return Peeked(
            id=request_id,
            attempt=batch.attempt,
            state=batch.state,
            reason=batch.reason,
            age_s=now - batch.since,
            offered_s=now - batch.offered_at if batch.offered_at else 0.0,
            manifest=_manifest_of(batch),
            payload_bytes=batch.payload_bytes,
            body_bytes=batch.body_bytes,
            slot=batch.slot,
            generation=batch.generation if has_slot else 0,
            slot_state=book.slots[batch.slot].state.name if has_slot else "",
            policy_version=batch.policy_version,
            stale_in_s=self._staleness.expires_s(batch, now) if is_alive else None,
            place=self._place_of(batch),
            sender=book.peers.find(batch.sender),
            holder=attachment.peer if attachment is not None else None,
            held_s=now - batch.lent_at if attachment is not None and batch.lent_at else 0.0,
            now_s=now,
        )

    def _place_of(self, batch: MicroBatch) -> int:
        queue = self._book.queues.find(batch.queue)
        ready = queue.ready if queue is not None and batch.state is MicroBatchState.READY else ()
        return ready.index(batch) if batch in ready else -1

    # What happens.

    def events(self, sender: Address, request: GetEvents, now: float) -> None:
        """Tells what happened; who follows hears of what comes next, if nothing has come yet."""
        follower = self._followers.get(sender)
        if follower is not None and follower.request == request:
            return  # a repeat; it is answered when the first one would have been
        self._followers.pop(sender, None)
        moments, last = self._after(request, self._book.history.last if request.after < 0 else request.after)
        if moments or request.after < 0 or not request.follow_s:
            self._answer(sender, request, moments, last, now)
        elif len(self._followers) < _MAX_FOLLOWERS:
            self._followers[sender] = _Follower(request, now + request.follow_s, last)
        else:
            words = f"{_MAX_FOLLOWERS} inspectors follow already; ask without follow_s"
            self._book.out.refuse(sender, request.id, RefusalCode.TOO_MANY, words)

    def told(self, after: int, limit: int, now: float) -> ToldMoments:
        """Returns what happened behind a moment; see `Ledger.told`."""
        history = self._book.history
        kept = history.kept_after(max(0, history.last - limit) if after < 0 else after, limit)
        return ToldMoments(kept, history.oldest, now, self._book.epoch)

    def serve(self, now: float) -> None:
        """Tells those who follow what has come since, or that their time is over and nothing has."""
        self._looked_at = now
        for sender, follower in list(self._followers.items()):
            moments, follower.looked = self._after(follower.request, follower.looked)
            if moments or follower.deadline <= now:
                del self._followers[sender]
                self._answer(sender, follower.request, moments, follower.looked, now)

    def deadlines(self) -> Iterator[float]:
        """Yields when `serve` has something to do."""
        for follower in self._followers.values():
            yield follower.deadline
            if follower.looked < self._book.history.last:
                yield self._looked_at + _PERIOD_S

    def _after(self, request: GetEvents, number: int) -> tuple[tuple[Moment, ...], int]:
        return self._book.history.after(number, request.limit, queue=request.queue, key=request.key)

    def _answer(
        self, sender: Address, request: GetEvents, moments: tuple[Moment, ...], last: int, now: float
    ) -> None:
        book = self._book
        events = Events(
            id=request.id,
            moments=moments,
            last=last,
            oldest=book.history.oldest,
            now_s=now,
            epoch=book.epoch,
        )
        book.out.do(Reply(sender, events))


def _manifest_of(batch: MicroBatch) -> bytes:
    return msgspec.msgpack.decode(batch.envelope, type=Envelope).manifest if batch.envelope else b""
