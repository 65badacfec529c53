"""What the daemon remembers of micro-batches that are over, and of stage calls that are refused for good.

The last of it is in memory, and in the pool's journal for the next daemon.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, TypeVar

import msgspec

from forebay.shm import Outcome
from forebay.wire import STRANGER, Client, MicroBatchState, RefusalCode, Refused

from .micro_batch import MicroBatch, recalled_batch
from .outbox import Outbox

_LASTING = frozenset({RefusalCode.REPLACED, RefusalCode.DROPPED, RefusalCode.STALE})
"""Refusals that also the next daemon repeats; the others were for want of something that it may have."""

K = TypeVar("K")
V = TypeVar("V")


@dataclasses.dataclass(frozen=True, slots=True)
class _Refusal:
    """What an attempt is refused with, and what its first client alone hears beside that."""

    refusal: Refused
    details: str = ""
    client: Client = STRANGER


class Outcomes:
    """The last that is known of keys, each kind of it up to a limit.

    What was trained and what was dropped are counted apart: a client that stages and resets a great deal must not
    push out what keeps the keys of others from being trained twice.

    Args:
        limit: How many are remembered of each kind.
        out: Takes what goes into the journal, and refusals.
    """

    def __init__(self, limit: int, out: Outbox) -> None:
        self._limit = limit
        self._out = out
        self._trained: OrderedDict[tuple[str, str], MicroBatch] = OrderedDict()
        self._dropped: OrderedDict[tuple[str, str], MicroBatch] = OrderedDict()
        self._refused: OrderedDict[tuple[str, str, str], _Refusal] = OrderedDict()

    # Ends.

    def keep(self, batch: MicroBatch) -> None:
        """Remembers a micro-batch that is over, as the last that is known of its key."""
        key = (batch.queue, batch.key)
        memories = (self._dropped, self._trained)
        if batch.state is not MicroBatchState.DROPPED:
            memories = (self._trained, self._dropped)
        memories[1].pop(key, None)
        _remember(memories[0], key, batch, self._limit)

    def find(self, queue: str, key: str) -> MicroBatch | None:
        """Returns the last that is known of a key."""
        return self._trained.get((queue, key)) or self._dropped.get((queue, key))

    def forget(self, batch: MicroBatch) -> None:
        """Remembers nothing more of a key, nor does the next daemon; what its attempts were refused with stays."""
        for memory in (self._trained, self._dropped):
            memory.pop((batch.queue, batch.key), None)
        self.record(batch, is_forgotten=True)

    # Refusals.

    def refuse_attempt(self, batch: MicroBatch, code: RefusalCode, words: str, *, details: str = "") -> None:
        """Refuses a stage call that was taken in before, now and whenever it is repeated.

        Its repeat may be on its way already; taken for a new offer, it would hold a slot that nobody fills.

        Args:
            batch: Of the call.
            code: Why.
            words: Why, for whoever repeats it, who may be another client than now.
            details: What follows them for the present client, who may see more than others.
        """
        refusal = Refused(id=batch.offer_id, code=code, words=words)
        self._remember_refusal(batch, _Refusal(refusal, details, batch.client))
        if not batch.was_published:
            self._out.refuse(batch.sender, batch.offer_id, code, words + details, queue=batch.queue, key=batch.key)

    def refusal_of(self, queue: str, key: str, attempt: str, client: Client = STRANGER) -> Refused | None:
        """Returns what an attempt that was once taken in was refused with after all, as a client may hear it."""
        known = self._refused.get((queue, key, attempt))
        if known is None or known.client != client:
            return known.refusal if known is not None else None
        return msgspec.structs.replace(known.refusal, words=known.refusal.words + known.details)

    def _remember_refusal(self, of: MicroBatch | Outcome, refusal: _Refusal) -> None:
        _remember(self._refused, (of.queue, of.key, of.attempt), refusal, self._limit)

    # The journal.

    def record(self, batch: MicroBatch, **fields: Any) -> None:
        """Has something about a micro-batch remembered beyond the end of this daemon; see `Outcome`."""
        outcome = Outcome(
            queue=batch.queue,
            key=batch.key,
            attempt=batch.attempt,
            state=batch.state,
            words=batch.reason,
            was_published=batch.was_published,
            is_stale=batch.is_stale,
            at=batch.since,
        )
        self._out.record(msgspec.structs.replace(outcome, **fields) if fields else outcome)

    def record_end(self, batch: MicroBatch) -> None:
        """Has the end of a micro-batch remembered, and what its attempt is refused with, if that lasts."""
        refusal = self.refusal_of(batch.queue, batch.key, batch.attempt)
        if refusal is not None and refusal.code in _LASTING:
            self.record(batch, code=refusal.code, words=refusal.words)
        else:
            self.record(batch)

    def recall(self, outcome: Outcome, now: float) -> None:
        """Remembers what a journal says of a micro-batch that is over."""
        if outcome.code is not None:
            self._remember_refusal(outcome, _Refusal(Refused(code=outcome.code, words=outcome.words)))
        self.keep(recalled_batch(outcome, now))


def _remember(memory: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > limit:
        memory.popitem(last=False)
