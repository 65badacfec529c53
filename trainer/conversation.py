"""What the trainer says to the daemon, and when it says it again. No socket, no clock, no thread.

What the trainer reports is repeated until the daemon confirms it, and a daemon that does not know this trainer,
since it was restarted, is told anew what the trainer holds. So no lost message and no restart strands a slot.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from forebay.wire import (
    MAX_ENTRIES,
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Detach,
    Done,
    FindPool,
    Finished,
    ForebayError,
    Goodbye,
    KeyGone,
    Lend,
    Limits,
    Peer,
    PoolFound,
    Promoted,
    RefusalCode,
    Refused,
    Stale,
    TrainerReply,
    TrainerRequest,
    VersionMismatchError,
    Want,
)

from .conversation_words import refusal_of

Report = Promoted | Finished | Detach
"""What the trainer says until it is confirmed; id and holder are filled in when it is said."""

_TAKEN_RETRY_S = 0.05


class Holdings(Protocol):
    """What the conversation asks and tells the queue, on the thread that drives it."""

    def attached(self, pool: Path, limits: Limits, *, same_pool: bool) -> None:
        """The daemon knows this trainer; demand counts from zero again, and another pool ends what was lent."""

    def held(self) -> tuple[tuple[int, int], ...]:
        """Returns (slot, generation) of what is lent and not released."""

    def on_device(self) -> tuple[tuple[str, str], ...]:
        """Returns (key, attempt) of what is promoted and not finished."""

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        """Returns the credit total, the keys that are waited for, and whether any of it is unmet."""

    def lent(self, lend: Lend) -> None:
        """A slot was lent."""

    def stale(self, notice: Stale) -> None:
        """What was lent is stale by now."""

    def gone(self, notice: KeyGone) -> None:
        """A wanted key will never come."""


class Phase(enum.Enum):
    """How far the conversation is."""

    LOOKING = "looking for the daemon"
    ATTACHED = "attached"
    FAILED = "failed"


class Conversation:
    """Decides what to say.

    Args:
        peer: This trainer.
        queue: The queue to attach to.
        holdings: The queue object.
        lock_in: Takes a holder lock in a pool of a daemon's epoch, or keeps the one that it has there; returns
            the holder's name, empty if it could not this time, and whether it is the pool of before.
        retry_s: Seconds without a confirmation after which something is said again.
    """

    def __init__(
        self,
        peer: Peer,
        queue: str,
        holdings: Holdings,
        lock_in: Callable[[Path, str], tuple[str, bool]],
        *,
        retry_s: float,
    ) -> None:
        self.phase = Phase.LOOKING
        self.refusal: ForebayError | None = None
        self._peer = peer
        self._queue = queue
        self._holdings = holdings
        self._lock_in = lock_in
        self._retry_s = retry_s
        self._holder = ""
        self._pool = Path()
        self._same_pool = False
        self._last_id = 0
        self._parts: set[int] = set()
        self._taken_s = _TAKEN_RETRY_S
        self._again_at: float | None = None
        self._unconfirmed: dict[int, Report] = {}
        self._stated: Want | None = None

    @property
    def is_settled(self) -> bool:
        """Whether everything that was reported is confirmed."""
        return not self._unconfirmed

    @property
    def unconfirmed(self) -> tuple[Report, ...]:
        """What was reported and not confirmed."""
        return tuple(self._unconfirmed.values())

    def look(self, now: float) -> list[TrainerRequest]:
        """Begins, or begins again."""
        self.phase = Phase.LOOKING
        self._again_at = now + self._retry_s
        return [FindPool(id=self._new_id(), version=PROTOCOL_VERSION)]

    def reconnected(self, now: float) -> list[TrainerRequest]:
        """Hears that the connection is a new one: the daemon behind it may be new too, and know nothing."""
        return self.look(now) if self.phase is not Phase.FAILED else []

    def report(self, report: Report) -> list[TrainerRequest]:
        """Says something that must be confirmed; while not attached, once it is."""
        report = msgspec.structs.replace(report, id=self._new_id(), holder=self._holder)
        self._unconfirmed[report.id] = report
        return [report] if self.phase is Phase.ATTACHED else []

    def want(self, *, again: bool = False) -> list[TrainerRequest]:
        """States the present demand, unless it is what was stated last.

        Args:
            again: Whether to state it in any case; what was stated may have been lost.
        """
        if self.phase is not Phase.ATTACHED:
            return []
        credit_total, keys, _ = self._holdings.demand()
        want = Want(holder=self._holder, credit_total=credit_total, keys=keys[:MAX_ENTRIES])
        if want == self._stated and not again:
            return []
        self._stated = want
        return [want]

    def tick(self, now: float) -> list[TrainerRequest]:
        """Says again what is not confirmed; due at `next_deadline`."""
        if self._has_nothing_to_say():
            self._again_at = None
            return []
        if self._again_at is None:
            # What there is to say was said just now.
            self._again_at = now + self._retry_s
        if now < self._again_at:
            return []
        if self.phase is Phase.LOOKING:
            return self.look(now)
        self._again_at = now + self._retry_s
        return [*self._unconfirmed.values(), *self.want(again=True)]

    def next_deadline(self) -> float | None:
        """Returns when to tick, at once for a past time, or None while there is nothing to say again."""
        if self._has_nothing_to_say():
            return None
        return 0.0 if self._again_at is None else self._again_at

    def _has_nothing_to_say(self) -> bool:
        if self.phase is Phase.ATTACHED:
            return self.is_settled and not self._holdings.demand()[2]
        return self.phase is Phase.FAILED

    def heard(self, reply: TrainerReply, now: float) -> list[TrainerRequest]:
        """Takes what the daemon says."""
        match reply:
            case PoolFound():
                return self._pool_found(reply)
            case Attached():
                return self._attached(reply, now)
            case Refused():
                return self._refused(reply, now)
            case Lend() | Stale() | KeyGone():
                self._heard_of_a_key(reply)
            case Done(id=confirmed):
                self._unconfirmed.pop(confirmed, None)
            case Goodbye():
                return self.look(now)
        return []

    def _heard_of_a_key(self, reply: Lend | Stale | KeyGone) -> None:
        match reply:
            case Lend(on_credit=on_credit):
                if not on_credit:
                    # The daemon has served a key that was wanted; to be wanted again, it must be stated again.
                    self._stated = None
                self._holdings.lent(reply)
            case Stale():
                self._holdings.stale(reply)
            case KeyGone():
                self._stated = None  # whoever wants it again is to be told again
                self._holdings.gone(reply)

    def _pool_found(self, found: PoolFound) -> list[TrainerRequest]:
        if self.phase is not Phase.LOOKING:
            return []
        if found.version != PROTOCOL_VERSION:
            self._fail(found.version)
            return []
        self._pool = Path(found.pool)
        holder, is_locked = self._lock_in(self._pool, found.epoch)
        if not holder:
            return []
        self._holder = holder
        # Not by the lock alone: of two answers to a repeated question the second finds it locked by the first.
        self._same_pool = self._same_pool and is_locked
        if not self._same_pool:
            self._forget_slots()
        return self._attach()

    def _attach(self) -> list[TrainerRequest]:
        """Says what this trainer has; if a message may not name it all, in parts, of which the last one counts."""
        held = (*self._holdings.held(), *self._being_released()) if self._same_pool else ()
        on_device = self._holdings.on_device()
        parts: list[TrainerRequest] = [
            Attach(
                id=self._new_id(),
                version=PROTOCOL_VERSION,
                peer=self._peer,
                queue=self._queue,
                holder=self._holder,
                held=held,
                on_device=on_device[first : first + MAX_ENTRIES],
            )
            for first in range(0, max(len(on_device), 1), MAX_ENTRIES)
        ]
        self._parts.update(part.id for part in parts[:-1])
        return parts

    def _attached(self, attached: Attached, now: float) -> list[TrainerRequest]:
        if attached.id in self._parts:
            # What is said before the last part would be forgotten with it: the daemon counts demand anew.
            return []
        self._parts = {part for part in self._parts if part > attached.id}
        self.phase = Phase.ATTACHED
        self._taken_s = _TAKEN_RETRY_S
        self._again_at = now + self._retry_s
        if not self._same_pool:
            # Again: what was said since the pool was found is still about the one before.
            self._forget_slots()
        self._holdings.attached(self._pool, attached.limits, same_pool=self._same_pool)
        self._same_pool = True
        self._unconfirmed = {
            number: msgspec.structs.replace(report, holder=self._holder)
            for number, report in self._unconfirmed.items()
        }
        return [*self._unconfirmed.values(), *self.want(again=True)]

    def _being_released(self) -> list[tuple[int, int]]:
        """Returns the slots whose release the daemon has not confirmed; it must not lend them again."""
        reports = [report for report in self._unconfirmed.values() if isinstance(report, Promoted | Finished)]
        return [(report.slot, report.generation) for report in reports if report.slot >= 0]

    def _forget_slots(self) -> None:
        """Drops what was to be said about slots of a pool that is no more; a new one has the same numbers."""
        reports = self._unconfirmed
        self._unconfirmed = {}
        for number, report in reports.items():
            if isinstance(report, Finished):
                self._unconfirmed[number] = msgspec.structs.replace(report, slot=-1, generation=0)

    def _refused(self, refused: Refused, now: float) -> list[TrainerRequest]:
        match refused.code:
            case RefusalCode.NOT_ATTACHED if self.phase is Phase.ATTACHED:
                return self.look(now)
            case RefusalCode.NOT_ATTACHED:
                return []
            case RefusalCode.QUEUE_TAKEN:
                # The one before may just have died: the kernel tells the daemon within milliseconds.
                self.refusal = refusal_of(refused)
                self._again_at = now + self._taken_s
                self._taken_s = min(2 * self._taken_s, self._retry_s)
                return []
            case RefusalCode.VERSION:
                self._fail(refused.version)
                return []
            case _:
                self.phase = Phase.FAILED
                self.refusal = refusal_of(refused)
                return []

    def _fail(self, version: int) -> None:
        self.phase = Phase.FAILED
        self.refusal = VersionMismatchError(
            "the daemon speaks another protocol version",
            got=version,
            limit=PROTOCOL_VERSION,
            remedy="run the same Forebay version on both sides",
        )

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id
