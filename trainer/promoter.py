"""The thread that moves entries between host and device, one at a time, off every step's critical path."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from forebay.sockets import tell_failure
from forebay.wire import Event, ForebayError, HostError, printable, words_of

from .changed import Changed
from .entry import Entry, PromotionError
from .entry_states import EntryState
from .events import StageDemote, StageFail, StagePromote, StageStale, StagingEvent
from .host_tree import PlacedTree
from .queue_books import Await, Demote, Promote, QueueBooks, Work
from .transfer import OnDevice, Transfer

log = logging.getLogger("forebay.trainer")


class _WentStaleError(Exception):
    """A transfer must not begin any more; says why."""


_Times = tuple[float, float, float, float]
"""Monotonic seconds: asked for the link, had it, had issued the transfer, had it complete."""


class Promoter:
    """Carries out what the books decide.

    Args:
        books: The queue's books.
        changed: The lock that guards them, with which changes are told.
        transfer: Ways between host and device.
        link: Held for each transfer: one at a time.
        demand_changed: Called under the lock after each piece of work.

    Attributes:
        failure: Why the thread ended when it should not have.
    """

    def __init__(
        self,
        books: QueueBooks,
        changed: Changed,
        transfer: Transfer,
        link: threading.Lock,
        demand_changed: Callable[[], None],
    ) -> None:
        self._books = books
        self._changed = changed
        self._transfer = transfer
        self._link = link
        self._demand_changed = demand_changed
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._activity = "idle"
        self._since = time.monotonic()
        self._waited_s = 0.0
        self.failure: BaseException | None = None

    def __repr__(self) -> str:
        if self._activity == "idle":
            return "promoter idle"
        return f"promoter {self._activity} for {time.monotonic() - self._since:.1f} s"

    @property
    def has_started(self) -> bool:
        """Whether there is a thread, or was one."""
        return self._thread is not None

    def start(self) -> None:
        """Begins the thread, the first time.

        Raises:
            HostError: There can be no more threads.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="forebay-promoter", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise HostError(
                    f"the promoter's thread cannot be started: {error}",
                    remedy="see the limits on threads (ulimit -u) and on memory",
                ) from error
            self._thread = thread

    def wake(self) -> None:
        """Has it look for work; called under the lock."""
        self.start()
        self._changed.work.notify_all()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after the work under way; returns whether it ended in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                event = self._carry_out(work)
                # Before the next wait: what was dropped meanwhile must not live on in this frame.
                del work
                if event is not None:
                    event.emit()
        except BaseException as error:  # a mistake of ours: whoever waits must hear of it
            with self._changed:
                self.failure = error
                self._changed.notify_all()
            raise

    def _next(self) -> Work | None:
        with self._changed:
            while not self._stopping:
                work = self._books.next_work()
                if work is not None:
                    return work
                self._begin("idle")
                self._changed.work.wait()
        return None

    def _begin(self, activity: str) -> None:
        self._activity, self._since = activity, time.monotonic()

    def _carry_out(self, work: Work) -> StagingEvent | None:
        match work:
            case Await():
                self._wait_for_the_device(work)
                return None
            case Promote(entry=entry):
                return self._promote(entry)
            case Demote():
                return self._demote(work)

    def _wait_for_the_device(self, work: Await) -> None:
        self._begin("waiting for the device to finish what was dispatched")
        work.work.wait()
        self._waited_s += time.monotonic() - self._since
        with self._changed:
            self._books.room.awaited(work.work)
            self._changed.notify_all()

    def _promote(self, entry: Entry) -> StagingEvent | None:
        self._begin(f"promoting {printable(entry.key)!r}")
        try:
            placed = entry.placed or self._transfer.place(entry.origin.read())
            on_device, times = self._put(entry, placed)
        except _WentStaleError as stale:
            return self._end_stale(entry, str(stale))
        except ForebayError as error:
            return self._end_badly(entry, error)
        except BaseException as error:  # noqa: BLE001 - even an exit: it belongs to whoever waits for this entry
            failure = PromotionError(
                f"micro-batch {entry.key!r} could not be promoted: {words_of(error)}",
                remedy="it keeps its place: make room on the device and ask for it again",
            )
            failure.__cause__ = error
            return self._end_badly(entry, failure)
        return self._end_well(entry, on_device, times)

    def _put(self, entry: Entry, placed: PlacedTree) -> tuple[OnDevice, _Times]:
        asked_at = time.monotonic()
        with self._link:
            began_at = time.monotonic()
            if why := entry.why_stale(began_at):
                raise _WentStaleError(why)
            issued = self._transfer.issue(placed)
            issued_at = time.monotonic()
            on_device = self._transfer.complete(placed, issued)
        return on_device, (asked_at, began_at, issued_at, time.monotonic())

    def _end_well(
        self, entry: Entry, on_device: OnDevice, times: tuple[float, float, float, float]
    ) -> StagingEvent | None:
        asked_at, began_at, issued_at, ended_at = times
        wait_prev_s, self._waited_s = self._waited_s + began_at - asked_at, 0.0
        with self._changed:
            entry.promote_s = ended_at - began_at
            self._books.arrived(entry, on_device)
            self._demand_changed()
            self._changed.notify_takers()
            if entry.state is EntryState.GONE:
                return None
            totals = self._books.totals
            totals.promotions += 1
            totals.promoted_bytes += on_device.host_bytes
            totals.wait_prev_s += wait_prev_s
            totals.issue_s += issued_at - began_at
            totals.transfer_s += ended_at - began_at
            counts = self._books.statistics()
        return StagePromote(
            key=entry.key,
            host_bytes=on_device.host_bytes,
            wait_prev_s=wait_prev_s,
            issue_s=issued_at - began_at,
            queued=counts.queued,
            on_device=counts.on_device,
            transfer_s=ended_at - began_at,
            ended_at=ended_at,
        )

    def _end_stale(self, entry: Entry, reason: str) -> StagingEvent | None:
        with self._changed:
            self._books.drop_stale(entry, reason)
            self._demand_changed()
            self._changed.notify_all()
        return StageStale(entry.key, reason) if entry.was_stale else None

    def _end_badly(self, entry: Entry, failure: ForebayError) -> StagingEvent:
        reason = printable(repr(failure))
        _let_go_of_frames(failure)
        with self._changed:
            if isinstance(failure, PromotionError):
                self._books.failed(entry, failure)
            else:
                self._books.rejected(entry, failure, reason)
            self._demand_changed()
            self._changed.notify_all()
        return StageFail(entry.key, reason, not isinstance(failure, PromotionError))

    def _demote(self, work: Demote) -> StagingEvent:
        entry = work.entry
        self._begin(f"bringing {printable(entry.key)!r} back to make room for {printable(work.wanted.key)!r}")
        assert entry.on_device is not None
        try:
            with self._link:
                placed = self._transfer.fetch(entry.on_device)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the other entry
            failure = PromotionError(
                f"micro-batch {work.wanted.key!r} could not be promoted: {entry.key!r} is on the device"
                f" before it and could not be brought back: {words_of(error)}",
                remedy="take them in order, or raise TUNIX_STAGE_MAX_DEVICE_BATCHES, or reset the queue",
            )
            failure.__cause__ = error
            _let_go_of_frames(failure)
            with self._changed:
                self._books.stayed(work, failure)
                self._changed.notify_all()
            return StageFail(work.wanted.key, printable(repr(failure)), is_final=False)
        with self._changed:
            self._books.returned(entry, placed)
            self._changed.notify_all()
        return StageDemote(entry.key, work.wanted.key, placed.tree.host_bytes, time.monotonic() - self._since)


def _let_go_of_frames(failure: BaseException) -> None:
    """Cuts off the frames that a failure went through: they hold arrays, and it may live long."""
    tell_failure(log, logging.DEBUG, Event.TRANSFER_FAILED, failure)
    seen: set[int] = set()
    errors: list[BaseException | None] = [failure]
    while errors:
        error = errors.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            errors += [error.__cause__, error.__context__]
