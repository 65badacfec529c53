"""How a step gets its micro-batch: from the queue, or from the bytes that it was given."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from forebay.wire import ForebayError, LocalError, printable

from .batch import Batch
from .entry import Entry, InProcess, Origin, PromotionError
from .entry_states import EntryState
from .feed import NotStagedError, not_staged
from .host_tree import HostTree, PlacedTree
from .once import OneWarning
from .queue_state import QueueState
from .transfer import OnDevice

_READY = frozenset({EntryState.ON_DEVICE, EntryState.REJECTED})

mismatch_warning = OneWarning(
    "STAGE_MISMATCH key=%s the payload is not what was staged under its key (structure, shapes, dtypes or static"
    " values): the entry is dropped and the payload transferred. Said once; the statistics count them"
)


class _OtherEntryError(Exception):
    """What is staged under a key is another kind of micro-batch by now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Tells the queue, and where the micro-batch came from, what becomes of a batch.

    Attributes:
        state: The queue's.
        origin: Where it came from.
        entry: As it was queued; None if the step's payload was not staged.
    """

    state: QueueState
    origin: Origin
    entry: Entry | None

    def batch(self, key: str, on_device: OnDevice) -> Batch:
        """Makes the batch that the step gets."""
        promote_s = 0.0 if self.entry is None else self.entry.promote_s
        return Batch(key, on_device.tree, host_bytes=on_device.host_bytes, promote_s=promote_s, step=self)

    def dispatched(self, outputs: Any) -> None:
        """See `forebay.trainer.batch.Step`."""
        work = None if outputs is None else self.state.transfer.watch(outputs)
        with self.state.changed:
            self.state.books.dispatched(self.entry, work)
            self.state.feed.demand_changed()
            self.state.changed.notify_all()

    def ended(self, reason: str) -> None:
        """See `forebay.trainer.batch.Step`."""
        with self.state.changed:
            self.origin.ended(reason)


def take_staged(state: QueueState, key: str | None, timeout_s: float) -> Batch:
    """Waits for an entry to be on the device; see `StagingQueue.take`."""
    return _take(state, key, timeout_s, state.feed.absent)


def take_same(state: QueueState, tree: HostTree, key: str, timeout_s: float) -> Batch:
    """Hands out the entry with a key if it is the same as a payload, else that; see `StagingQueue.put`."""
    staged = _signature(state, key)
    if staged is not None and staged != tree.signature:
        mismatch_warning.give(printable(key))
        return put_now(state, tree, key, "mismatch", timeout_s)

    def refuse(key: str | None) -> None:
        raise not_staged(key, state.books)

    try:
        return _take(state, key, timeout_s, refuse, tree.signature)
    except _OtherEntryError:
        mismatch_warning.give(printable(key))
        return put_now(state, tree, key, "mismatch", timeout_s)
    except NotStagedError:
        return put_now(state, tree, key, "missing", timeout_s)


def put_now(state: QueueState, tree: HostTree, key: str | None, cause: str, timeout_s: float) -> Batch:
    """Transfers a payload of a step's own.

    Args:
        state: The queue's.
        tree: The payload.
        key: The key that it stands for, if any.
        cause: Why it is transferred inline; what it is counted under.
        timeout_s: Seconds to wait for the transfer under way.
    """
    placed = state.transfer.place(tree)
    with state.changed:
        state.check_open()
        origin, dropped = _supersede(state, key, cause)
        state.books.totals.inline[cause] += 1
        state.books.room.inline_begins()
        state.changed.notify_all()
    del dropped
    on_device = None
    try:
        _let_the_device_finish(state, timeout_s)
        on_device = _transfer(state, placed, key, timeout_s)
    finally:
        with state.changed:
            state.books.room.inline_ends(in_step=on_device is not None)
            state.changed.notify_all()
    return Step(state, origin, None).batch(key or "", on_device)


def use_prepared(state: QueueState, tree: Any, key: str | None) -> Batch:
    """Hands out what is on the device already; see `StagingQueue.bypass`."""
    with state.changed:
        state.check_open()
        origin, dropped = _supersede(state, key, "prepared")
        state.books.totals.prepared += 1
        state.books.room.inline_begins()
        state.books.room.inline_ends(in_step=True)
        state.changed.notify_all()
    del dropped
    return Batch(key or "", tree, host_bytes=0, promote_s=0.0, step=Step(state, origin, None))


def _take(
    state: QueueState,
    key: str | None,
    timeout_s: float,
    absent: Callable[[str | None], None],
    signature: bytes | None = None,
) -> Batch:
    """Waits for an entry, and takes it.

    Args:
        state: The queue's.
        key: Which; None for the next.
        timeout_s: Seconds to wait.
        absent: Called while it is not queued; raises if it will not come.
        signature: What it must be, if that matters.
    """
    with state.changed:
        state.check_open()
        state.feed.asked()
        entry = _ready(state, key, signature)
        if entry is None:
            name = "the next micro-batch" if key is None else f"micro-batch {printable(key)!r}"
            with state.wanting(key):
                what = f"{name} to be on the device"
                entry = state.wait(lambda: _look_for(state, key, absent, signature), timeout_s, what)
        state.feed.demand_changed()
        on_device, failure, entry.failure = entry.on_device, entry.failure, None
    if on_device is None:
        raise failure or LocalError(f"{entry!r} was taken without its arrays")
    return Step(state, entry.origin, entry).batch(entry.key, on_device)


def _ready(state: QueueState, key: str | None, signature: bytes | None) -> Entry | None:
    entry = state.books.find(key)
    if entry is None or entry.state not in _READY:
        return None
    if signature is not None and entry.on_device is not None and entry.on_device.signature != signature:
        # It was replaced since it was compared.
        raise _OtherEntryError
    state.books.take(entry)
    return entry


def _look_for(
    state: QueueState, key: str | None, absent: Callable[[str | None], None], signature: bytes | None
) -> Entry | None:
    found = _ready(state, key, signature)
    if found is not None:
        return found
    entry = state.books.find(key)
    if entry is None:
        absent(key)
    elif isinstance(entry.failure, PromotionError):
        raise entry.failure.anew()
    return None


def _signature(state: QueueState, key: str) -> bytes | None:
    """Returns the signature of the entry with a key; None if there is none, or taking it tells more."""
    with state.changed:
        entry = state.books.find(key)
        if entry is None or entry.state is EntryState.REJECTED:
            return None
        placed, on_device, origin = entry.placed, entry.on_device, entry.origin
    if on_device is not None:
        return on_device.signature
    try:
        return (placed.tree if placed is not None else origin.read()).signature
    except ForebayError:
        return None


def _supersede(state: QueueState, key: str | None, cause: str) -> tuple[Origin, Entry | None]:
    """Drops the entry whose key a step trains by other bytes; returns whom to tell at its end, and the entry.

    Let the entry go outside of the lock: to free its memory may take long.
    """
    if key is None:
        return InProcess(), None
    entry = state.books.find(key)
    if entry is not None:
        state.books.drop(entry, cause, "the step was given other bytes for its key")
    return state.feed.inline(key), entry


def _let_the_device_finish(state: QueueState, timeout_s: float) -> None:
    if not state.serialize:
        return
    with state.changed:
        what = "another step to hand its work to the device"
        state.wait(lambda: None if state.books.room.is_dispatching else True, timeout_s, what)
        running = state.books.room.running
    for work in running:
        work.wait()


def _transfer(state: QueueState, placed: PlacedTree, key: str | None, timeout_s: float) -> OnDevice:
    if not state.link.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
        raise state.timeout(timeout_s, "the transfer under way to end")
    try:
        return state.transfer.complete(placed, state.transfer.issue(placed))
    except ForebayError:
        raise
    except Exception as error:
        name = "the payload" if key is None else f"the payload for {printable(key)!r}"
        raise PromotionError(
            f"{name} could not be transferred: {error}", remedy="make room on the device and pass it again"
        ) from error
    finally:
        state.link.release()
