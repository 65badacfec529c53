"""Feeds a staging queue with the slots that a daemon lends."""

from __future__ import annotations

import math
import time
from pathlib import Path

from forebay.wire import (
    BrokenError,
    Finished,
    ForebayError,
    KeyGone,
    Lend,
    Limits,
    MicroBatchGoneError,
    MicroBatchState,
    Promoted,
    Stale,
    StaleError,
    printable,
)

from .daemon_link import DaemonLink
from .entry import Entry, Origin
from .entry_states import EntryState
from .events import StageStale
from .feed import Inlet
from .origins import LentSlot, OwnKey
from .slot_reader import SlotReader

_UNLIMITED_AHEAD = 1 << 16
_REMEMBERED_KEYS = 10_000


class DaemonFeed:
    """What a trainer tells a daemon, and hears from it, about one queue.

    Args:
        endpoint: The daemon's trainer endpoint.
        queue: The queue's name.
        timeout_s: Seconds to wait for the daemon at the start.
    """

    remedy = "see what the daemon holds and what the orchestrator does: forebay status"

    def __init__(self, endpoint: str, queue: str, *, timeout_s: float) -> None:
        self._queue = queue
        self._timeout_s = timeout_s
        self._link = DaemonLink(endpoint, queue, self, self._broken)
        self._inlet: Inlet
        self._reader: SlotReader | None = None
        self._failure: ForebayError | None = None
        self._unfinished: dict[LentSlot, Entry] = {}
        self._newest: dict[int, int] = {}
        self._credit_used = 0
        self._was_asked = False
        self._gone: dict[str, KeyGone] = {}
        # Bounded like the daemon's own memory of finished keys.
        self._trained_here: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"DaemonFeed({self._queue!r} at {self._link.endpoint}, {self._link.state})"

    # Feed: what the queue asks and tells.

    def open(self, inlet: Inlet) -> None:
        """Attaches.

        Raises:
            WaitTimeoutError: No daemon answered; the message names address and setting.
            RefusedError: Another live trainer is attached; the message names it.
            VersionMismatchError: The daemon speaks another version.
            HostError: The daemon's pool cannot be seen from here.
        """
        self._inlet = inlet
        try:
            self._link.attach(self._timeout_s)
        except BaseException:
            self._link.close()
            raise

    def close(self) -> None:
        """Detaches; what was lent goes back, what is on the device and unfinished is reported lost.

        Raises:
            BrokenError: The daemon was away, and does not know what was finished since.
        """
        unconfirmed = self._link.close()
        finished = [report.key for report in unconfirmed if isinstance(report, Finished)]
        if finished:
            raise BrokenError(
                f"the daemon at {self._link.endpoint} never heard what became of some micro-batches",
                got=finished,
                remedy="it was away when the queue was closed; whoever stages their keys again trains them again",
            )

    def check(self) -> None:
        """Raises if the link to the daemon is broken."""
        if self._failure is not None:
            # Else it would collect the frames of all who raise it.
            raise self._failure.with_traceback(None)

    def asked(self) -> None:
        """Notes that somebody takes micro-batches."""
        self._was_asked = True

    def absent(self, key: str | None) -> None:
        """Raises MicroBatchGoneError if a key will never come: the daemon says so, or it was stale here."""
        notice = None if key is None else self._gone.get(key)
        if notice is not None:
            error = StaleError if notice.stale else MicroBatchGoneError
            raise error(notice.key, notice.state, notice.reason)

    def demand_changed(self) -> None:
        """Has the present demand stated."""
        if self._gone:
            missing = self._inlet.books.missing
            self._gone = {key: notice for key, notice in self._gone.items() if key in missing}
        self._link.demand_changed()

    def staged(self, key: str) -> Origin:
        """Returns how to tell the daemon that a key is trained which it may have as well."""
        return OwnKey(self, key)

    def inline(self, key: str) -> Origin:
        """Returns how to tell the daemon that a key is trained which it may have as well."""
        return OwnKey(self, key)

    # Holdings: what the conversation asks and tells, on the link's thread.

    def attached(self, pool: Path, limits: Limits, *, same_pool: bool) -> None:
        """See `Holdings`."""
        with self._inlet.changed:
            if self._reader is not None and same_pool:
                self._reader.limits = limits
            else:
                self._reader = SlotReader(pool, limits)
                self._forget_lent()
            self._credit_used = 0
            self._inlet.wake()
            self._inlet.changed.notify_all()

    def _forget_lent(self) -> None:
        """Drops what was lent from a pool that is no more: the daemon will have it staged again."""
        self._newest.clear()
        for slot, entry in list(self._unfinished.items()):
            if slot.is_on_host:
                self._inlet.books.drop(entry, "pool_gone", "its pool is gone")

    def held(self) -> tuple[tuple[int, int], ...]:
        """See `Holdings`."""
        with self._inlet.changed:
            return tuple((slot.lend.slot, slot.lend.generation) for slot in self._unfinished if slot.is_held)

    def on_device(self) -> tuple[tuple[str, str], ...]:
        """See `Holdings`."""
        with self._inlet.changed:
            return tuple((slot.lend.key, slot.attempt) for slot in self._unfinished if not slot.is_on_host)

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        """See `Holdings`.

        Nothing is asked for before the first request: who attaches only to look should cost no micro-batch.
        """
        with self._inlet.changed:
            books = self._inlet.books
            room = books.free_places(_UNLIMITED_AHEAD) if self._was_asked else 0
            return self._credit_used + room, books.missing, bool(room or books.missing)

    def lent(self, lend: Lend) -> None:
        """See `Holdings`.

        A daemon that was restarted lends again what it does not know to be released. The release is on its way; a
        second promotion would train the micro-batch twice.
        """
        replaced = None
        expires_at = math.inf if lend.expires_s is None else time.monotonic() + lend.expires_s
        with self._inlet.changed:
            self._credit_used += lend.on_credit
            if self._newest.get(lend.slot) == lend.generation or self._reader is None:
                return
            self._newest[lend.slot] = lend.generation
            slot = LentSlot(self, lend, self._reader)
        # Here and not on the promoter's thread: its views are there before anybody is woken for it.
        slot.read_ahead()
        with self._inlet.changed:
            entry = self._unfinished[slot] = Entry(lend.key, slot, expires_at=expires_at)
            if lend.key in self._trained_here:
                slot.ended("")
            else:
                replaced = self._inlet.books.add(entry)
            self.demand_changed()
            self._inlet.wake()
        # Outside of the lock: to free its memory may take long.
        del replaced

    def stale(self, notice: Stale) -> None:
        """See `Holdings`. An entry whose transfer waits for its turn is dropped by the promoter."""
        dropped = None
        with self._inlet.changed:
            named = (notice.slot, notice.generation)
            lent = self._unfinished.items()
            found = [(slot, entry) for slot, entry in lent if (slot.lend.slot, slot.lend.generation) == named]
            for slot, entry in found:
                entry.stale_reason = notice.reason
                if slot.is_on_host and self.is_current(slot.reader):
                    self._inlet.books.drop_stale(entry, notice.reason)
                    dropped = StageStale(entry.key, notice.reason)
                    self._inlet.wake()
                    self._inlet.changed.notify_all()
            self.demand_changed()
        if dropped is not None:
            dropped.emit()

    def gone(self, notice: KeyGone) -> None:
        """See `Holdings`."""
        with self._inlet.changed:
            if notice.key in self._inlet.books.missing:
                self._gone[notice.key] = notice
                self._inlet.changed.notify_all()

    def _broken(self, error: ForebayError) -> None:
        with self._inlet.changed:
            self._failure = error
            self._inlet.changed.notify_all()

    # Origins: what becomes of an entry; under the queue's lock.

    def is_current(self, reader: SlotReader) -> bool:
        """Tells whether a reader is of the pool that the daemon has now; only there a slot's number means it."""
        return reader is self._reader

    def state_of(self, slot: LentSlot) -> EntryState:
        """Returns the state of a lent slot's entry."""
        return self._unfinished[slot].state

    def promoted(self, slot: LentSlot) -> None:
        """Tells the daemon that a slot is released."""
        lend = slot.lend

        def promoted() -> Promoted | None:
            if not self.is_current(slot.reader):
                return None
            return Promoted(holder="", key=lend.key, slot=lend.slot, generation=lend.generation)

        self._link.report(promoted)

    def finished(self, slot: LentSlot, reason: str) -> None:
        """Tells the daemon what became of a micro-batch."""
        lend = slot.lend
        was_stale = self._unfinished.pop(slot).was_stale
        was_held = not slot.was_transferred
        if was_stale and lend.key in self._inlet.books.missing:
            # Whoever waits for it hears so, though the daemon may be away.
            self._gone[lend.key] = KeyGone(key=lend.key, state=MicroBatchState.DROPPED, reason=reason, stale=True)

        def finished() -> Finished:
            is_current = self.is_current(slot.reader)
            return Finished(
                holder="",
                key=lend.key,
                attempt=slot.attempt,
                slot=lend.slot if was_held and is_current else -1,
                generation=lend.generation if is_current else 0,
                reason=printable(reason),
                stale=was_stale,
            )

        self._link.report(finished)

    def finished_here(self, key: str) -> None:
        """Tells the daemon that a key was trained by bytes of this process, and ends what was lent for it."""
        self._trained_here[key] = None
        if len(self._trained_here) > _REMEMBERED_KEYS:
            del self._trained_here[next(iter(self._trained_here))]
        entry = self._inlet.books.find(key)
        if entry is not None and isinstance(entry.origin, LentSlot):
            self._inlet.books.drop(entry, "superseded", "")
            self._inlet.wake()
            self._inlet.changed.notify_all()
        self._link.report(lambda: Finished(holder="", key=key))
        self.demand_changed()
