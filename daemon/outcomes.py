"""What the daemon remembers of micro-batches that are over, and of stage calls that are refused for good."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TypeVar

import msgspec

from forebay.wire import STRANGER, Client, MicroBatchState, RefusalCode, Refused

from .micro_batch import MicroBatch

LASTING = frozenset({RefusalCode.REPLACED, RefusalCode.DROPPED, RefusalCode.STALE})
"""Refusals that also the next daemon repeats; the others were for want of something that it may have."""

K = TypeVar("K")
V = TypeVar("V")


@dataclasses.dataclass(frozen=True, slots=True)
class _Refusal:
    """What an attempt is refused with, and what its first client alone hears beside that."""

    refusal: Refused
    details: str
    client: Client


class Outcomes:
    """The last that is known of keys, each kind of it up to a limit.

    What was trained and what was dropped are counted apart: a client that stages and resets a great deal must not
    push out what keeps the keys of others from being trained twice.

    Args:
        limit: How many are remembered of each kind.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._trained: OrderedDict[tuple[str, str], MicroBatch] = OrderedDict()
        self._dropped: OrderedDict[tuple[str, str], MicroBatch] = OrderedDict()
        self._refused: OrderedDict[tuple[str, str, str], _Refusal] = OrderedDict()

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

    def refuse(
        self, attempt: tuple[str, str, str], refusal: Refused, *, details: str = "", client: Client = STRANGER
    ) -> None:
        """Remembers what an attempt is refused with whenever it is repeated.

        Args:
            attempt: Its queue, key and name.
            refusal: What everybody hears who repeats it.
            details: What follows the words for the client that was refused, who may see more than others.
            client: That client.
        """
        _remember(self._refused, attempt, _Refusal(refusal, details, client), self._limit)

    def refusal_of(self, attempt: tuple[str, str, str], client: Client) -> Refused | None:
        """Returns what an attempt that was once taken in was refused with after all, as a client may hear it."""
        known = self._refused.get(attempt)
        if known is None or known.client != client:
            return known.refusal if known is not None else None
        return msgspec.structs.replace(known.refusal, words=known.refusal.words + known.details)


def _remember(memory: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > limit:
        memory.popitem(last=False)
