"""How a step gets its micro-batch: from the queue, or from the bytes that it was given."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from forebay.wire import Event, ForebayError, LocalError, WaitTimeoutError, printable, words_of

from .batch import Batch
from .entry import Entry, InProcess, Origin, PromotionError
from .entry_states import EntryState
from .host_tree import HostTree, PlacedTree, difference
from .once import OneWarning
from .queue_parts import QueueParts
from .transfer import OnDevice

GivenUp = Callable[[], bool]
"""Tells whether nobody wants what is waited for any more."""

_READY = frozenset({EntryState.ON_DEVICE, EntryState.REJECTED})

mismatch_warning = OneWarning()

_MISMATCH_WORDS = "the entry is dropped, and the payload transferred; said once, the statistics count them"


class _UnusableEntryError(Exception):
    """What is staged under a key does not stand for the payload that a step was given.

    Args:
        cause: Why not; what the payload's own transfer is counted under.
        words: What differs, if that is the cause.
    """

    def __init__(self, cause: str, words: str = "") -> None:
        super().__init__(cause, words)
        self.cause = cause
        self.words = words


@dataclasses.dataclass(frozen=True, slots=True)
class QueueStep:
    """Tells the queue, and where the micro-batch came from, what becomes of a batch.

    Attributes:
        parts: The queue's.
        origin: Where it came from.
        entry: As it was queued; None if the step's payload was not staged.
    """

    parts: QueueParts
    origin: Origin
    entry: Entry | None

    def batch(self, key: str, on_device: OnDevice) -> Batch:
        """Makes the batch that the step gets."""
        return Batch(
            key,
            on_device.tree,
            host_bytes=on_device.host_bytes,
            promote_s=0.0 if self.entry is None else self.entry.promote_s,
            is_staged=self.entry is not None,
            step=self,
        )

    def dispatched(self, outputs: Any) -> None:
        """See `StepReport`."""
        work = None if outputs is None else self.parts.transfer.watch(outputs)
        with self.parts.changed:
            self.parts.books.dispatched(self.entry, work)
            self.parts.feed.demand_changed()
            self.parts.changed.notify_all()

    def ended(self, reason: str) -> None:
        """See `StepReport`."""
        with self.parts.changed:
            self.origin.ended(reason)


def take_staged(parts: QueueParts, key: str | None, timeout_s: float, given_up: GivenUp | None = None) -> Batch:
    """Waits for an entry to be on the device; see `StagingQueue.take`."""
    return _take(parts, key, timeout_s, parts.feed.absent, given_up)


def take_same(
    parts: QueueParts, tree: HostTree, key: str, timeout_s: float, given_up: GivenUp | None = None
) -> Batch:
    """Hands out the entry with a key if it is the same as a payload, else that; see `StagingQueue.put`."""

    def refuse(_: str | None) -> None:
        raise _UnusableEntryError("missing")

    try:
        _check_same(parts, key, tree.signature)
        return _take(parts, key, timeout_s, refuse, given_up, tree.signature)
    except _UnusableEntryError as unusable:
        cause, words = unusable.cause, unusable.words
    if cause == "mismatch":
        fields = {"key": key, "difference": words, "words": _MISMATCH_WORDS}
        mismatch_warning.give(Event.STAGE_MISMATCH, **fields)
    return put_now(parts, tree, key, cause, timeout_s)


def put_now(parts: QueueParts, tree: HostTree, key: str | None, cause: str, timeout_s: float) -> Batch:
    """Transfers a payload of a step's own.

    Args:
        parts: The queue's.
        tree: The payload.
        key: The key that it stands for, if any.
        cause: Why it is transferred inline; what it is counted under.
        timeout_s: Seconds to wait for the transfer under way.
    """
    placed = parts.transfer.place(tree)
    with parts.changed:
        parts.check_open()
        origin, dropped = _supersede(parts, key, cause)
        parts.books.totals.inline[cause] += 1
        parts.books.room.inline_begins()
        parts.changed.notify_all()
    del dropped
    on_device = None
    try:
        _let_the_device_finish(parts, timeout_s)
        on_device = _transfer(parts, placed, key, timeout_s)
    finally:
        with parts.changed:
            parts.books.room.inline_ends(in_step=on_device is not None)
            parts.changed.notify_all()
    return QueueStep(parts, origin, None).batch(key or "", on_device)


def use_prepared(parts: QueueParts, tree: Any, key: str | None) -> Batch:
    """Hands out what is on the device already; see `StagingQueue.bypass`."""
    with parts.changed:
        parts.check_open()
        origin, dropped = _supersede(parts, key, "prepared")
        parts.books.totals.prepared += 1
        parts.books.room.inline_step_begins()
        parts.changed.notify_all()
    del dropped
    step = QueueStep(parts, origin, None)
    return Batch(key or "", tree, host_bytes=0, promote_s=0.0, is_staged=False, step=step)


def _take(
    parts: QueueParts,
    key: str | None,
    timeout_s: float,
    absent: Callable[[str | None], None],
    given_up: GivenUp | None,
    signature: bytes | None = None,
) -> Batch:
    """Waits for an entry, and takes it.

    Args:
        parts: The queue's.
        key: Which; None for the next.
        timeout_s: Seconds to wait.
        absent: Called while it is not queued; raises if it will not come.
        given_up: Ends the wait.
        signature: What it must be, if that matters.
    """
    with parts.changed:
        parts.check_open()
        parts.feed.asked()
        entry = _ready(parts, key, signature)
        if entry is None:
            name = "the next micro-batch" if key is None else f"micro-batch {printable(key)!r}"
            with parts.wanting(key):
                what = f"{name} to be on the device"
                entry = parts.wait(lambda: _look_for(parts, key, absent, given_up, signature), timeout_s, what)
        parts.feed.demand_changed()
        on_device, failure, entry.failure = entry.on_device, entry.failure, None
    if on_device is None:
        raise failure or LocalError(f"{entry!r} was taken without its arrays")
    return QueueStep(parts, entry.origin, entry).batch(entry.key, on_device)


def _ready(parts: QueueParts, key: str | None, signature: bytes | None) -> Entry | None:
    entry = parts.books.find(key)
    if entry is None or entry.state not in _READY:
        return None
    if signature is not None and entry.on_device is None:
        raise _UnusableEntryError("rejected")
    if signature is not None and entry.on_device is not None and entry.on_device.signature != signature:
        raise _UnusableEntryError("mismatch", difference(entry.on_device.signature, signature))
    parts.books.take(entry)
    return entry


def _look_for(
    parts: QueueParts,
    key: str | None,
    absent: Callable[[str | None], None],
    given_up: GivenUp | None,
    signature: bytes | None,
) -> Entry | None:
    if given_up is not None and given_up():
        raise WaitTimeoutError("the wait for a micro-batch was given up by its caller")
    found = _ready(parts, key, signature)
    if found is not None:
        return found
    entry = parts.books.find(key)
    if entry is None:
        absent(key)
    elif isinstance(entry.failure, PromotionError):
        raise entry.failure.anew()
    return None


def _check_same(parts: QueueParts, key: str, signature: bytes) -> None:
    """Compares an entry before anybody waits for its transfer; it may be replaced until that is over."""
    with parts.changed:
        entry = parts.books.find(key)
        if entry is None:
            return
        placed, on_device, origin = entry.placed, entry.on_device, entry.origin
        is_unread = placed is None and on_device is None and entry.state is not EntryState.REJECTED
    known = on_device or placed
    staged = None if known is None else known.signature
    if is_unread:
        # What cannot be read will be rejected when it is promoted, and says so then.
        with contextlib.suppress(ForebayError):
            staged = origin.read().signature
    if staged is not None and staged != signature:
        raise _UnusableEntryError("mismatch", difference(staged, signature))


def _supersede(parts: QueueParts, key: str | None, cause: str) -> tuple[Origin, Entry | None]:
    """Drops the entry whose key a step trains by other bytes; returns whom to tell at its end, and the entry.

    Let the entry go outside of the lock: to free its memory may take long.
    """
    if key is None:
        return InProcess(), None
    entry = parts.books.find(key)
    if entry is not None:
        parts.books.drop(entry, cause, "the step was given other bytes for its key")
    return parts.feed.inline(key), entry


def _let_the_device_finish(parts: QueueParts, timeout_s: float) -> None:
    if parts.serialize:
        with parts.changed:
            # The promoter waits for the device, since that wait has no timeout.
            parts.promoter.wake()
            what = "the device to finish what was dispatched"
            parts.wait(lambda: parts.books.room.is_quiet or None, timeout_s, what)


def _transfer(parts: QueueParts, placed: PlacedTree, key: str | None, timeout_s: float) -> OnDevice:
    if not parts.link.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
        raise parts.timeout(timeout_s, "the transfer under way to end")
    try:
        return parts.transfer.complete(placed, parts.transfer.issue(placed))
    except ForebayError:
        raise
    except Exception as error:
        name = "the payload" if key is None else f"the payload for {printable(key)!r}"
        raise PromotionError(
            f"{name} could not be transferred: {words_of(error)}",
            remedy="make room on the device and pass it again",
        ) from error
    finally:
        parts.link.release()
