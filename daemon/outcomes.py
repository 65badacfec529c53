"""What the daemon remembers of micro-batches that are over, and of stage calls that are refused for good."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from forebay.wire import MicroBatchState, RefusalCode, Refused

from .micro_batch import MicroBatch

LASTING = frozenset({RefusalCode.REPLACED, RefusalCode.DROPPED, RefusalCode.STALE})
"""Refusals that also the next daemon repeats; the others were for want of something that it may have."""

K = TypeVar("K")
V = TypeVar("V")


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
        self._refused: OrderedDict[tuple[str, str, str], Refused] = OrderedDict()

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

    def refuse(self, attempt: tuple[str, str, str], refusal: Refused) -> None:
        """Remembers what an attempt, by queue, key and name, is refused with whenever it is repeated."""
        _remember(self._refused, attempt, refusal, self._limit)

    def refusal_of(self, queue: str, key: str, attempt: str) -> Refused | None:
        """Returns what an attempt that was once taken in was refused with after all."""
        return self._refused.get((queue, key, attempt))


def _remember(memory: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > limit:
        memory.popitem(last=False)
