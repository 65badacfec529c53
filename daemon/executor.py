"""Does what the ledger says: answers, slot headers, growth, lock watches, log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay.shm import Pool, SlotFile, holder_path
from forebay.sockets import Endpoint, Mailbox, PeerAnswers, kind_of, tell
from forebay.wire import Event, LocalError, LogLimit, encode_message

from .actions import (
    Action,
    Address,
    AwaitWriters,
    Channel,
    ForgetHolder,
    Level,
    Log,
    Reply,
    ReserveSlot,
    WatchHolder,
    WriteBody,
    WriteLoan,
    WriteOutcome,
    WriteState,
)
from .background import SlotGrower, watch_lock
from .ledger import Ledger

log = logging.getLogger("forebay.daemon")

_WRITE_S = 60.0
_ALWAYS_TOLD = frozenset({Event.ADOPT, Event.DISCARD})


class Executor:
    """Carries out actions on the loop's thread; what is slow goes to threads, whose outcomes come back as events.

    Args:
        ledger: Hears the outcomes.
        pool: Holds the slots.
        endpoints: The ROUTER of each channel.
        mailbox: Brings outcomes back to the loop.
    """

    def __init__(
        self,
        ledger: Ledger,
        pool: Pool,
        endpoints: Mapping[Channel, Endpoint],
        mailbox: Mailbox,
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._mailbox = mailbox
        self._log_limit = LogLimit()
        self._answers = {
            channel: PeerAnswers(endpoint, withheld=self._withheld, undeliverable=self._undeliverable)
            for channel, endpoint in endpoints.items()
        }
        self._grower = SlotGrower(mailbox, self._grown, self._grow_failed)
        self._by_type: dict[type[Action], Callable[[Any], None]] = {
            Reply: self._reply,
            WriteState: self._write_state,
            WriteLoan: self._write_loan,
            WriteBody: self._write_body,
            WriteOutcome: self._write_outcome,
            ReserveSlot: self._reserve,
            AwaitWriters: self._await_writers,
            WatchHolder: self._watch,
            ForgetHolder: self._forget,
            Log: self._log,
        }

    def perform(self, actions: Sequence[Action]) -> None:
        """Carries out actions in order."""
        for action in actions:
            self._by_type[type(action)](action)

    def close(self) -> None:
        """Waits for a growth under way and ends its thread."""
        self._grower.close()

    def _reply(self, reply: Reply) -> None:
        to = reply.to
        self._answers[to.channel].add(to.routing, to.user, encode_message(reply.message))

    def has_much_for(self, peer: Address) -> bool:
        """Whether a peer was answered so much in this turn that a long answer can wait."""
        return self._answers[peer.channel].has_much(peer.routing, peer.user)

    def flush(self) -> None:
        """Sends what was said since the last time."""
        for answers in self._answers.values():
            answers.flush()

    def _withheld(self, count: int) -> None:
        if self._has_room_for(Event.ANSWERS_WITHHELD):
            tell(log, logging.WARNING, Event.ANSWERS_WITHHELD, count=count)

    def _undeliverable(self, count: int) -> None:
        tell(log, logging.DEBUG, Event.ANSWERS_UNDELIVERABLE, count=count)

    def _write_state(self, action: WriteState) -> None:
        self._pool.files[action.slot].write_state(
            action.state,
            sequence=action.sequence,
            holder=action.holder,
            ready_at=action.ready_at,
            lent_at=action.lent_at,
        )

    def _write_loan(self, action: WriteLoan) -> None:
        self._pool.files[action.slot].write_loan(action.generation, action.envelope, action.body_bytes)

    def _write_body(self, action: WriteBody) -> None:
        self._pool.files[action.slot].body(0, len(action.body))[:] = action.body

    def _write_outcome(self, action: WriteOutcome) -> None:
        self._pool.outcomes.write(action.outcome)

    def _reserve(self, action: ReserveSlot) -> None:
        self._grower.grow(self._pool.files[action.slot], action.file_bytes)

    def _await_writers(self, action: AwaitWriters) -> None:
        if not self._ledger.incoming.wait_until_left(action.arrivals, _WRITE_S):
            raise LocalError(f"waited {_WRITE_S:g} s for a chunk to be written, in {action.arrivals!r}")

    def _grown(self, file: SlotFile) -> None:
        file.remap()
        self.perform(self._ledger.reserved(file.index, file.file_bytes, time.monotonic()))

    def _grow_failed(self, file: SlotFile, words: str) -> None:
        self.perform(self._ledger.reserve_failed(file.index, words, time.monotonic()))

    def _watch(self, action: WatchHolder) -> None:
        def freed() -> None:
            self.perform(self._ledger.holder_free(action.holder, time.monotonic()))

        def unwatched(error: OSError) -> None:
            if self._has_room_for(Event.LOCK_UNWATCHED):
                tell(log, logging.WARNING, Event.LOCK_UNWATCHED, path=str(path), reason=error.strerror)

        path = holder_path(self._pool.path, action.holder)
        watch_lock(path, self._mailbox, freed, unwatched)

    def _forget(self, action: ForgetHolder) -> None:
        path = holder_path(self._pool.path, action.holder)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # a folder that a member of the group left there: it ends no daemon
            if self._has_room_for(Event.HOLDER_STAYS):
                tell(log, logging.WARNING, Event.HOLDER_STAYS, path=str(path), reason=error.strerror)

    def tell_left_out(self, now: float) -> None:
        """Says how many events were left out of the log; due at `next_deadline`."""
        for kind, count in self._log_limit.take_left_out(now):
            tell(log, logging.WARNING, Event.LEFT_OUT, kind=kind, count=count)

    def next_deadline(self) -> float | None:
        """Returns the monotonic second at which `tell_left_out` has something to say, or None."""
        return self._log_limit.next_deadline()

    def _is_told(self, action: Log) -> bool:
        # What the host causes is bounded by its slots; peers can cause any number of the others.
        if action.level <= Level.DEBUG or action.event in _ALWAYS_TOLD:
            return True
        return self._has_room_for(kind_of(action.event, action.fields))

    def _has_room_for(self, kind: str) -> bool:
        """Whether the log may have one more of a kind of event that peers cause."""
        now = time.monotonic()
        self.tell_left_out(now)
        return self._log_limit.admits(kind, now)

    def _log(self, action: Log) -> None:
        if log.isEnabledFor(action.level) and self._is_told(action):
            tell(log, action.level, action.event, **action.fields)
