"""The staging queue: any number of micro-batches on the host, no more on the device than the cap."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from forebay.wire import UsageError, WaitTimeoutError, check_name, printable

from .batch import Batch
from .entry import Entry, PromotionError
from .entry_states import EntryState
from .feed import Feed, NoFeed
from .left_open import LeftOpen
from .queue_parts import QueueParts
from .settings import TrainerSettings, load_trainer_settings
from .statistics import QueueStats
from .steps import GivenUp, put_now, take_same, take_staged, use_prepared
from .transfer import Transfer

WAIT_S = 600.0
"""Seconds that a wait may take if nothing else is said: a transfer of 5 GB takes seconds, a compiler minutes."""
_CLOSE_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """A payload was taken into the queue.

    Attributes:
        key: Its key.
        on_device: Whether it is on the device already; if not, its leaves are numpy and use no device memory.
        replaced: Whether it took the place of an entry with its key.
    """

    key: str
    on_device: bool
    replaced: bool


class StagingQueue:
    """Micro-batches with keys, in one order, from `stage` and from a feed; a context manager.

    A thread of its own promotes them to the device. JAX settings that hold for one thread, such as
    `jax.default_device` as a context manager, do not reach it. Fork no process from this one while a queue is
    open.

    Args:
        transfer: Ways between host and device.
        settings: The cap and the mode; default from the environment. In the mode `off` a queue works as in
            `stage`: to decline is the business of a `StagedEngine`.
        feed: Another source of entries, beside `stage`.

    Raises:
        SettingError: The environment has a wrong value.
    """

    def __init__(
        self, transfer: Transfer, *, settings: TrainerSettings | None = None, feed: Feed | None = None
    ) -> None:
        self.settings = load_trainer_settings() if settings is None else settings
        self._parts = QueueParts(transfer, self.settings, NoFeed() if feed is None else feed)
        self._this_thread = threading.local()
        self._parts.open_feed()
        self._left_open = LeftOpen(self, self._parts.promoter, self._parts.feed)

    def __repr__(self) -> str:
        return repr(self._parts)

    @property
    def is_fed(self) -> bool:
        """Whether it has another source than `stage`."""
        return self._parts.is_fed

    @property
    def statistics(self) -> QueueStats:
        """The queue's numbers now."""
        with self._parts.changed:
            return self._parts.books.statistics()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are queued, in order."""
        with self._parts.changed:
            return self._parts.books.keys

    def stage(self, payload: Any, *, key: str, timeout_s: float = WAIT_S) -> Queued:
        """Takes a payload into the queue: at its end, or in the place of the entry with its key.

        Nothing is copied here: leave the arrays as they are until the entry is on the device. This returns before
        the transfer; in the mode `serialize` when it is complete, or at once if there is no room on the device or
        if this is called while work is handed to it.

        Args:
            payload: A pytree of numpy arrays and static values.
            key: Its key.
            timeout_s: Seconds that a serialized transfer may take.

        Raises:
            TreeError: It is no micro-batch, or can never be had on the device; nothing has changed.
            PromotionError: A serialized transfer failed; the entry is queued.
            WaitTimeoutError: A serialized transfer took too long; the entry is queued.
            ClosedError: The queue is closed.
        """
        check_request(key, timeout_s)
        if key is None:
            raise UsageError("a micro-batch was staged without a key", remedy="pass a key, and take it by that")
        parts = self._parts
        entry = Entry(key, parts.feed.staged(key), parts.transfer.place(parts.transfer.take_apart(payload)))
        with parts.changed:
            parts.check_open()
            parts.promoter.start()
            replaced = parts.books.add(entry)
            parts.promoter.wake()
            parts.feed.demand_changed()
            # Inside of a dispatch its own thread would wait for itself: the transfer comes after the dispatch.
            if parts.serialize and not getattr(self._this_thread, "is_dispatching", False):
                parts.wait(lambda: self._is_settled(entry), timeout_s, f"the transfer of {printable(key)!r}")
                self._raise_failure(entry)
            on_device = entry.state is EntryState.ON_DEVICE
        # What was replaced is let go here, outside of the lock: to free its memory may take long.
        return Queued(key, on_device, replaced is not None)

    def _raise_failure(self, entry: Entry) -> None:
        if isinstance(entry.failure, PromotionError):
            raise entry.failure.anew()
        if entry.state is EntryState.REJECTED and entry.failure is not None:
            # The caller is told here; nobody else has to be.
            self._parts.books.take(entry)
            raise entry.failure

    def _is_settled(self, entry: Entry) -> bool | None:
        """Tells whether nothing will happen to an entry before a step begins or ends; None if something will."""
        will_move = entry.state is EntryState.PROMOTING or self._parts.books.will_promote(entry)
        return None if will_move else True

    def take(
        self,
        key: str | None = None,
        *,
        timeout_s: float = WAIT_S,
        given_up: GivenUp | None = None,
    ) -> Batch:
        """Waits for a micro-batch to be on the device, and hands it out.

        Args:
            key: Which one; default the next in the queue's order.
            timeout_s: Seconds to wait.
            given_up: Tells whether the wait shall end before that; asked whenever `look_again` is called.

        Returns:
            The batch; use it as a context manager. It counts towards the cap until it is dispatched.

        Raises:
            NotStagedError: It is not queued, and nothing feeds the queue.
            WaitTimeoutError: It was not there in time, or was given up.
            MicroBatchGoneError: The daemon says that this key was trained, dropped or lost, and will not come.
            TreeError: It cannot be had on the device; it is dropped, with this as the reason.
            PromotionError: It could not be promoted now, for example for want of device memory; it keeps its
                place, and the next call tries again.
            ClosedError: The queue is closed.
        """
        check_request(key, timeout_s)
        return take_staged(self._parts, key, timeout_s, given_up)

    def look_again(self) -> None:
        """Has all who wait look whether they still have to; see `take`."""
        with self._parts.changed:
            self._parts.changed.notify_all()

    def put(
        self,
        payload: Any,
        *,
        key: str | None = None,
        timeout_s: float = WAIT_S,
        given_up: GivenUp | None = None,
    ) -> Batch:
        """Hands out a payload for a step, whatever is queued.

        With a key, the entry of that key is handed out instead if it is the same micro-batch: structure, shapes,
        dtypes and static values are compared, the arrays' values are not. An entry that is not the same is
        dropped. Otherwise the payload is transferred now, and no other transfer begins before it.

        Args:
            payload: A pytree of numpy arrays and static values.
            key: The key that it stands for; default none, and nothing that is queued is touched.
            timeout_s: Seconds to wait for a transfer.
            given_up: Tells whether the wait for the key's entry shall end before that; see `take`.

        Returns:
            The batch. It counts towards the cap if it was staged.

        Raises:
            TreeError: It is no micro-batch, or cannot be had on the device.
            PromotionError: The transfer failed.
            WaitTimeoutError: A transfer took too long, or the wait was given up.
            ClosedError: The queue is closed.
        """
        check_request(key, timeout_s)
        tree = self._parts.transfer.take_apart(payload)
        if key is None:
            return put_now(self._parts, tree, None, "keyless", timeout_s)
        return take_same(self._parts, tree, key, timeout_s, given_up)

    def bypass(self, tree: Any, *, key: str | None = None) -> Batch:
        """Hands out a micro-batch whose arrays are on the device already.

        Args:
            tree: A pytree of device arrays and static values.
            key: The key that it stands for; an entry with it is dropped, since it would be trained twice.

        Raises:
            ClosedError: The queue is closed.
        """
        check_request(key, 0)
        return use_prepared(self._parts, tree, key)

    @contextlib.contextmanager
    def dispatching(self, *, timeout_s: float = WAIT_S) -> Iterator[None]:
        """Wraps each call that hands work to the device, so that `serialize` can keep transfers apart from it.

        Raises:
            WaitTimeoutError: The transfer under way took too long; the call was not made.
        """
        parts = self._parts
        if not parts.serialize:
            yield
            return
        with parts.changed:
            parts.books.room.dispatch_is_due()
            try:
                what = "the transfer under way to end before work is handed to the device"
                parts.wait(lambda: parts.books.room.allows_dispatch or None, timeout_s, what)
            finally:
                parts.books.room.dispatch_is_no_longer_due()
            parts.books.room.dispatch_begins()
        self._this_thread.is_dispatching = True
        try:
            yield
        finally:
            self._this_thread.is_dispatching = False
            with parts.changed:
                parts.books.room.dispatch_ends()
                parts.changed.notify_all()

    def runs(self, outputs: Any) -> None:
        """Tells of work on the device that uses no micro-batch, such as an optimizer update."""
        work = self._parts.transfer.watch(outputs)
        with self._parts.changed:
            self._parts.books.room.runs(work, holds_inputs=False)

    def reset(self) -> None:
        """Drops all that is queued here, releases its slots, and starts the counts anew.

        What a daemon has and has not lent yet is not touched, and comes next; `StagingClient.reset` drops that.
        A transfer that is under way goes on and is then forgotten. A step that has its batch keeps it.
        """
        with self._parts.changed:
            dropped = self._parts.books.reset()
            self._parts.feed.demand_changed()
            self._parts.changed.notify_all()
        del dropped

    def close(self) -> None:
        """Ends the queue. What a daemon lent goes back to it; what is on the device and unfinished is lost.

        Raises:
            BrokenError: The daemon was away, and does not know what was finished since.
            WaitTimeoutError: A transfer did not end.
        """
        parts = self._parts
        with parts.changed:
            parts.closed = True
            parts.changed.notify_all()
        # The transfer under way must end before the lock that guards its slot is let go.
        if not parts.promoter.stop(_CLOSE_S):
            raise WaitTimeoutError(
                f"{self!r} waited {_CLOSE_S:g} s for the transfer under way to end",
                remedy="close it again later, or end this process; its slots stay lent until then",
            )
        if not self._left_open.forget():
            return
        try:
            parts.feed.close()
        finally:
            with parts.changed:
                forgotten = parts.books.forget()
            for entry in forgotten:
                entry.let_go()

    def __del__(self) -> None:
        if getattr(self, "_left_open", None) is not None and self._parts.is_in_use and not sys.is_finalizing():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_request(key: object, timeout_s: object) -> None:
    """Raises UsageError if a key is none that can be told to a daemon, or a timeout is none."""
    # A wrong key would end the conversation with a daemon, and NaN would wait for ever.
    if key is not None:
        check_name("key of a micro-batch", key)
    if not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise UsageError("a timeout", got=timeout_s, limit="0 s or more")
