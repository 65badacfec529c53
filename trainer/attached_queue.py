"""A queue as the trainer sees it: micro-batches on the device, one promoted ahead of the one in use."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forebay.shm import default_endpoint
from forebay.wire import (
    ClosedError,
    Finished,
    ForebayError,
    KeyGone,
    Lend,
    Limits,
    MicroBatchGoneError,
    Promoted,
    TreeRegistry,
    WaitTimeoutError,
    default_registry,
    unflatten,
)

from .batch import Batch
from .daemon_link import DaemonLink
from .host_batch import SlotReader
from .placement import targets
from .transfer import put_on_device

log = logging.getLogger("forebay.trainer")


@dataclasses.dataclass(frozen=True, slots=True)
class _OnDevice:
    """A promoted micro-batch that nobody has taken yet."""

    tree: Any
    host_bytes: int
    promote_s: float


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
            those with the micro-batch's own containers, or a function of a leaf's path and host array.
        registry: Classes that may occur in trees.
        cast_64bit: Narrow 64-bit leaves where JAX's 64-bit mode is off, instead of refusing them.
        timeout_s: Seconds to wait for the daemon.

    Returns:
        The attached queue, a context manager. Fork no process from this one while it is attached: the child
        would keep the lock that tells that this trainer is alive.

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
        ahead: int = 1,
    ) -> None:
        self.name = queue
        self._shardings = shardings
        self._registry = registry
        self._cast_64bit = cast_64bit
        self._ahead = ahead
        # Guards all below; held for microseconds, never across a transfer or a wait for the daemon.
        self._changed = threading.Condition()
        self._reader: SlotReader | None = None
        self._lent: OrderedDict[int, Lend] = OrderedDict()
        self._newest: dict[int, int] = {}
        self._promoting: tuple[Lend, str] | None = None
        self._promoted: OrderedDict[str, _OnDevice | Exception] = OrderedDict()
        self._unfinished: dict[str, str] = {}
        self._credit_total = 0
        self._credit_used = 0
        self._wanted: list[str] = []
        self._gone: dict[str, KeyGone] = {}
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
            return (
                f"AttachedQueue({self.name!r}, lent={len(self._lent)}, promoted={list(self._promoted)}, "
                f"unfinished={list(self._unfinished)})"
            )

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
            ClosedError: The queue is closed.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            if key is not None and key not in self._promoted:
                self._gone.pop(key, None)
                self._wanted.append(key)
                self._link.demand_changed()
            try:
                key, entry = self._wait_for(key, deadline, timeout_s)
            finally:
                if key in self._wanted:
                    self._wanted.remove(key)
            self._changed.notify_all()
            self._link.demand_changed()
        if isinstance(entry, Exception):
            raise entry
        return Batch(key, entry.tree, host_bytes=entry.host_bytes, promote_s=entry.promote_s, finish=self._finish)

    def _wait_for(self, key: str | None, deadline: float, timeout_s: float) -> tuple[str, _OnDevice | Exception]:
        while True:
            if self._closed:
                raise ClosedError(f"queue {self.name!r} is closed", remedy="use it inside its with block")
            if self._failure is not None:
                raise self._failure
            if key in self._gone:
                notice = self._gone.pop(key)
                raise MicroBatchGoneError(key, notice.state, notice.reason)
            found = key if key is not None else self._next_unwanted()
            if found in self._promoted:
                return found, self._promoted.pop(found)
            if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                raise self._timeout(key, timeout_s)

    def _next_unwanted(self) -> str:
        """Returns the first promoted key that no other call waits for by name, or an impossible one."""
        return next((key for key in self._promoted if key not in self._wanted), "")

    def _timeout(self, key: str | None, timeout_s: float) -> WaitTimeoutError:
        wanted = "the next micro-batch" if key is None else f"micro-batch {key!r}"
        return WaitTimeoutError(
            f"{wanted} of queue {self.name!r} was not on the device within {timeout_s:g} s"
            f" ({len(self._lent)} lent, {len(self._promoted)} promoted, {len(self._unfinished)} unfinished;"
            f" link {self._link.state})",
            remedy="see what the daemon holds and what the orchestrator does: forebay status",
        )

    def _finish(self, key: str, dropped_because: str) -> None:
        with self._changed:
            self._unfinished.pop(key, None)
        self._link.report(Finished(holder="", key=key, reason=dropped_because))

    def close(self) -> None:
        """Detaches; what was lent goes back, what is on the device and unfinished is reported lost."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        # The transfer under way must end before the lock that guards its slot is let go.
        self._promoter.join()
        self._link.close()
        self._promoted.clear()

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
            while True:
                if self._closed:
                    return None
                lend = self._choose()
                if lend is not None and self._reader is not None:
                    del self._lent[lend.slot]
                    self._promoting = (lend, "")
                    return lend, self._reader
                self._changed.wait()

    def _choose(self) -> Lend | None:
        for lend in self._lent.values():
            if lend.key in self._wanted:
                return lend
        has_room = len(self._promoted) < self._ahead
        return next(iter(self._lent.values()), None) if has_room else None

    def _promote(self, lend: Lend, reader: SlotReader) -> None:
        started = time.monotonic()
        entry: _OnDevice | Exception
        report: Promoted | Finished
        try:
            batch = reader.read(lend)
            self._promoting = (lend, batch.attempt)
            where = targets(self._shardings, batch.manifest, batch.views, self._registry)
            leaves = put_on_device(batch, where, cast_64bit=self._cast_64bit)
            tree = unflatten(batch.manifest.structure, leaves, registry=self._registry)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever takes this batch
            entry = error
            report = Finished(
                holder="", key=lend.key, slot=lend.slot, generation=lend.generation, reason=repr(error)
            )
        else:
            promote_s = time.monotonic() - started
            entry = _OnDevice(tree, batch.manifest.payload_bytes, promote_s)
            report = Promoted(holder="", slot=lend.slot, generation=lend.generation, key=lend.key)
            log.info("promote key=%s host_bytes=%d seconds=%.4f", lend.key, entry.host_bytes, promote_s)
        self._record(lend, reader, entry, report)

    def _record(
        self, lend: Lend, reader: SlotReader, entry: _OnDevice | Exception, report: Promoted | Finished
    ) -> None:
        with self._changed:
            attempt = self._promoting[1] if self._promoting else ""
            self._promoting = None
            self._promoted[lend.key] = entry
            if isinstance(entry, _OnDevice):
                self._unfinished[lend.key] = attempt
            if reader is self._reader:
                self._link.report(report)
            # Else the slot was another pool's, and its number means something else in this one.
            self._link.demand_changed()
            self._changed.notify_all()

    # Holdings: what the conversation asks and tells, on the link's thread.

    def attached(self, pool: Path, limits: Limits, *, same_pool: bool) -> None:
        """See `Holdings`."""
        with self._changed:
            if not same_pool:
                self._lent.clear()
                self._newest.clear()
                self._reader = SlotReader(pool, limits)
            self._credit_total = self._credit_used = 0
            self._changed.notify_all()

    def held(self) -> tuple[tuple[int, int], ...]:
        """See `Holdings`."""
        with self._changed:
            lends = [*self._lent.values(), *([self._promoting[0]] if self._promoting else [])]
            return tuple((lend.slot, lend.generation) for lend in lends)

    def on_device(self) -> tuple[tuple[str, str], ...]:
        """See `Holdings`."""
        with self._changed:
            promoting = {self._promoting[0].key: self._promoting[1]} if self._promoting else {}
            return tuple((self._unfinished | promoting).items())

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        """See `Holdings`."""
        with self._changed:
            waiting = len(self._lent) + len(self._promoted) + (self._promoting is not None)
            self._credit_total = max(self._credit_total, self._credit_used + self._ahead - waiting)
            is_unmet = self._credit_total > self._credit_used or bool(self._wanted)
            return self._credit_total, tuple(self._wanted), is_unmet

    def lent(self, lend: Lend) -> None:
        """See `Holdings`."""
        with self._changed:
            self._credit_used += lend.on_credit
            if self._newest.get(lend.slot) == lend.generation:
                return  # lent before; its release is on its way, and a second promotion would train it twice
            self._newest[lend.slot] = lend.generation
            self._lent[lend.slot] = lend
            self._changed.notify_all()

    def gone(self, notice: KeyGone) -> None:
        """See `Holdings`."""
        with self._changed:
            if notice.key in self._wanted:
                self._gone[notice.key] = notice
                self._changed.notify_all()

    def _broken(self, error: ForebayError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
