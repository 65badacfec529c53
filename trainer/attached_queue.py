"""A queue as the trainer sees it: micro-batches on the device, one promoted ahead of the one in use."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forebay.shm import default_endpoint
from forebay.wire import (
    BrokenError,
    ClosedError,
    Finished,
    ForebayError,
    KeyGone,
    Lend,
    Limits,
    MicroBatchGoneError,
    MicroBatchState,
    Promoted,
    TreeRegistry,
    UsageError,
    WaitTimeoutError,
    default_registry,
    printable,
    unflatten,
)

from .batch import Batch
from .daemon_link import DaemonLink
from .host_batch import SlotReader
from .placement import targets
from .promotions import Entry, OnDevice, PromotionError, Promotions
from .transfer import put_on_device

log = logging.getLogger("forebay.trainer")

_AHEAD = 1
_CLOSE_S = 60.0


def attach(
    queue: str = "train",
    *,
    endpoint: str | None = None,
    shardings: Any = None,
    registry: TreeRegistry = default_registry,
    cast_64bit: bool = False,
    timeout_s: float = 10.0,
) -> AttachedQueue:
    """Attaches this process to a queue of the daemon on this host.

    Args:
        queue: The queue's name; one live trainer a queue.
        endpoint: The daemon's trainer endpoint; default the one of this user's daemon.
        shardings: Where leaves go: None for JAX's default device, a sharding, a device, a pytree prefix of
            those with the micro-batch's own containers, or a function of a leaf's path and
            `jax.ShapeDtypeStruct`.
        registry: Classes that may occur in trees.
        cast_64bit: Narrow 64-bit leaves where JAX's 64-bit mode is off, instead of refusing them.
        timeout_s: Seconds to wait for the daemon.

    Returns:
        The attached queue, a context manager. From the first `take` on, one micro-batch is promoted ahead;
        leaving the context while it waits on the device reports it lost, and the orchestrator may send it
        again. Promotion has a thread of its own: JAX settings that hold for one thread, such as
        `jax.default_device` as a context manager, do not reach it. Fork no process from this one while it is
        attached: the child would keep the lock that tells that this trainer is alive.

    Raises:
        WaitTimeoutError: No daemon answered; the message names address and setting.
        RefusedError: Another live trainer is attached; the message names it.
        VersionMismatchError: The daemon speaks another version.
        HostError: The daemon's pool cannot be seen from here.
    """
    return AttachedQueue(
        queue,
        endpoint or default_endpoint("trainer"),
        shardings=shardings,
        registry=registry,
        cast_64bit=cast_64bit,
        timeout_s=timeout_s,
    )


class AttachedQueue:
    """Takes lent slots, promotes them in order, one ahead of the batch in use; made by `attach`."""

    def __init__(
        self,
        queue: str,
        endpoint: str,
        *,
        shardings: Any,
        registry: TreeRegistry,
        cast_64bit: bool,
        timeout_s: float,
    ) -> None:
        self.name = queue
        self._shardings = shardings
        self._registry = registry
        self._cast_64bit = cast_64bit
        # Guards all below; held for microseconds, never across a transfer or a wait for the daemon.
        self._changed = threading.Condition()
        self._books = Promotions(_AHEAD)
        self._reader: SlotReader | None = None
        self._failure: ForebayError | None = None
        self._closed = False
        self._link = DaemonLink(endpoint, queue, self, self._broken)
        self._promoter = threading.Thread(target=self._promote_all, name="forebay-promoter", daemon=True)
        try:
            self._link.attach(timeout_s)
        except BaseException:
            self._link.close()
            raise
        self._promoter.start()

    def __repr__(self) -> str:
        with self._changed:
            return f"AttachedQueue({self.name!r}, {self._books!r})"

    def take(self, key: str | None = None, *, timeout_s: float = 600.0) -> Batch:
        """Waits for a micro-batch to be on the device.

        Args:
            key: Which one; default the next in the queue's order.
            timeout_s: Seconds to wait.

        Returns:
            The batch; use it as a context manager. The next one is promoted meanwhile.

        Raises:
            WaitTimeoutError: None came in time.
            MicroBatchGoneError: That key was trained, dropped or lost, and will not come.
            TreeError: It cannot be had on the device; it is dropped, with this as the reason.
            PromotionError: It could not be promoted now, for example for want of device memory; it stays in
                its slot, and the next call tries again.
            ClosedError: The queue is closed.
        """
        _check_request(key, timeout_s)
        with self._changed:
            try:
                taken, entry = self._wait_for(key, timeout_s)
            finally:
                self._changed.notify_all()
                self._link.demand_changed()
        if isinstance(entry, Exception):
            raise entry
        return Batch(
            taken, entry.tree, host_bytes=entry.host_bytes, promote_s=entry.promote_s, finish=self._finish
        )

    def _wait_for(self, key: str | None, timeout_s: float) -> tuple[str, Entry]:
        self._books.ask()
        if key is not None:
            self._books.want(key)
        self._link.demand_changed()
        self._changed.notify_all()
        try:
            found = self._changed.wait_for(lambda: self._look_for(key), timeout_s)
            if found is None:
                raise self._timeout(key, timeout_s)
            return found
        finally:
            if key is not None:
                self._books.unwant(key)

    def _look_for(self, key: str | None) -> tuple[str, Entry] | None:
        if self._closed:
            raise ClosedError(f"queue {self.name!r} is closed", remedy="use it inside its with block")
        if self._failure is not None:
            raise self._failure
        found = self._books.take(key)
        if isinstance(found, KeyGone):
            raise MicroBatchGoneError(found.key, found.state, found.reason)
        return found

    def _timeout(self, key: str | None, timeout_s: float) -> WaitTimeoutError:
        wanted = "the next micro-batch" if key is None else f"micro-batch {key!r}"
        return WaitTimeoutError(
            f"{wanted} of queue {self.name!r} was not on the device within {timeout_s:g} s"
            f" ({self._books!r}; link {self._link.state})",
            remedy="see what the daemon holds and what the orchestrator does: forebay status",
        )

    def _finish(self, key: str, dropped_because: str) -> None:
        with self._changed:
            attempt = self._books.finish(key)
        self._link.report(Finished(holder="", key=key, attempt=attempt, reason=printable(dropped_because)))

    def close(self) -> None:
        """Detaches; what was lent goes back, what is on the device and unfinished is reported lost.

        Raises:
            BrokenError: The daemon was away, and does not know what was finished since.
            WaitTimeoutError: A transfer did not end.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        # The transfer under way must end before the lock that guards its slot is let go.
        self._promoter.join(_CLOSE_S)
        if self._promoter.is_alive():
            raise WaitTimeoutError(
                f"queue {self.name!r} waited {_CLOSE_S:g} s for the transfer under way to end ({self._books!r})",
                remedy="end this process; its slots stay lent until then",
            )
        unconfirmed = self._link.close()
        self._books.drop_promoted()
        finished = [report.key for report in unconfirmed if isinstance(report, Finished)]
        if finished:
            raise BrokenError(
                f"the daemon at {self._link.endpoint} never heard what became of some micro-batches",
                got=finished,
                remedy="it was away when the queue was closed; whoever stages their keys again trains them again",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Promotion, on a thread of its own.

    def _promote_all(self) -> None:
        while (work := self._next_to_promote()) is not None:
            self._promote(*work)

    def _next_to_promote(self) -> tuple[Lend, SlotReader] | None:
        with self._changed:
            while not self._closed:
                if self._reader is not None and (lend := self._books.begin()) is not None:
                    return lend, self._reader
                self._changed.wait()
        return None

    def _promote(self, lend: Lend, reader: SlotReader) -> None:
        try:
            entry: Entry = self._on_device(lend, reader)
        except ForebayError as error:
            entry = error
        except BaseException as error:  # noqa: BLE001 - even an exit: it belongs to whoever takes this batch
            entry = PromotionError(
                f"micro-batch {lend.key!r} could not be promoted: {error}",
                remedy="it is still in its slot: make room on the device and take it again",
            )
            entry.__cause__ = error
        with self._changed:
            # Once the pool is another, the slot's number means something else there.
            slot = lend.slot if reader is self._reader else -1
            if slot < 0 and isinstance(entry, PromotionError):
                entry = MicroBatchGoneError(lend.key, MicroBatchState.LOST, "its pool is gone")
            self._books.end(entry)
            if isinstance(entry, Exception) and not isinstance(entry, PromotionError):
                self._link.report(
                    Finished(
                        holder="",
                        key=lend.key,
                        slot=slot,
                        generation=lend.generation,
                        reason=printable(repr(entry)),
                    )
                )
            elif isinstance(entry, OnDevice) and slot >= 0:
                self._link.report(Promoted(holder="", key=lend.key, slot=slot, generation=lend.generation))
            self._changed.notify_all()
        self._link.demand_changed()

    def _on_device(self, lend: Lend, reader: SlotReader) -> OnDevice:
        started = time.monotonic()
        batch = reader.read(lend)
        with self._changed:
            self._books.name_attempt(batch.attempt)
        leaf_targets = targets(self._shardings, batch.manifest, batch.views, self._registry)
        leaves = put_on_device(batch, leaf_targets, cast_64bit=self._cast_64bit)
        tree = unflatten(batch.manifest.structure, leaves, registry=self._registry)
        entry = OnDevice(tree, batch.manifest.payload_bytes, time.monotonic() - started)
        log.info("promote key=%s host_bytes=%d seconds=%.4f", lend.key, entry.host_bytes, entry.promote_s)
        return entry

    # Holdings: what the conversation asks and tells, on the link's thread.

    def attached(self, pool: Path, limits: Limits, *, same_pool: bool) -> None:
        """See `Holdings`."""
        with self._changed:
            self._books.attached(same_pool=same_pool)
            if self._reader is not None and same_pool:
                self._reader.limits = limits
            else:
                self._reader = SlotReader(pool, limits)
            self._changed.notify_all()

    def held(self) -> tuple[tuple[int, int], ...]:
        """See `Holdings`."""
        with self._changed:
            return self._books.held()

    def on_device(self) -> tuple[tuple[str, str], ...]:
        """See `Holdings`."""
        with self._changed:
            return self._books.on_device()

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        """See `Holdings`."""
        with self._changed:
            return self._books.demand()

    def lent(self, lend: Lend) -> None:
        """See `Holdings`."""
        with self._changed:
            self._books.lent(lend)
            self._changed.notify_all()

    def gone(self, notice: KeyGone) -> None:
        """See `Holdings`."""
        with self._changed:
            self._books.gone(notice)
            self._changed.notify_all()

    def _broken(self, error: ForebayError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()


def _check_request(key: object, timeout_s: float) -> None:
    # A wrong key would end the conversation with the daemon, and NaN would wait for ever.
    if not isinstance(key, str | None) or not timeout_s >= 0:
        raise UsageError("take", got=(key, timeout_s), limit="a key or None, and a time of 0 s or more")
