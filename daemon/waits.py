"""Who waits for a micro-batch's key to reach a state."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Final

import msgspec

from forebay.wire import GONE, Await, Gone, MicroBatchState, Reached, RefusalCode

from .actions import Address
from .ledger_settings import LedgerSettings
from .micro_batch import MicroBatch
from .outbox import Outbox

_PLACE: Final = {
    MicroBatchState.OFFERED: 0,
    MicroBatchState.FILLING: 1,
    MicroBatchState.READY: 2,
    MicroBatchState.ON_DEVICE: 3,
    MicroBatchState.CONSUMED: 4,
}
"""In a life that goes on to its end."""


class Awaiting(msgspec.Struct, frozen=True):
    """A peer that waits for a key to reach a state.

    Attributes:
        queue: The key's queue.
        key: The key.
        to: Who waits.
        id: Of its request.
        until: The state.
        deadline: Monotonic second at which its lease ends.
    """

    queue: str
    key: str
    to: Address
    id: int
    until: MicroBatchState
    deadline: float


WaitKey = tuple[Address, int]


class Waits:
    """The waits of all peers, each with a lease.

    Args:
        settings: How long and how many.
        out: Where answers go.

    Attributes:
        settings: Those that hold from now on; the lease of a wait stays the same.
    """

    def __init__(self, settings: LedgerSettings, out: Outbox) -> None:
        self.settings = settings
        self._out = out
        self._awaiting: dict[tuple[str, str], dict[WaitKey, Awaiting]] = {}
        # As all leases are of one length, the first is the first to end: nobody ever looks through all of them.
        self._leases: OrderedDict[tuple[str, str, WaitKey], Awaiting] = OrderedDict()
        self._counts: Counter[Address] = Counter()

    def wait_for(self, batch: MicroBatch, to: Address, request: Await, now: float) -> None:
        """Answers now or when the micro-batch gets there; a repeated request renews its lease."""
        deadline = now + self.settings.await_lease_s
        wait = Awaiting(batch.queue, batch.key, to, request.id, request.until, deadline)
        if self._answer(wait, batch):
            return
        lease = _lease_of(wait)
        is_new = lease not in self._leases
        if is_new and self._are_too_many(to):
            words = f"{self.settings.max_waits_per_peer} waits of one peer (max_waits_per_peer), or "
            words += f"{self.settings.max_waits} of all (max_waits), are there already"
            self._out.refuse(to, request.id, RefusalCode.TOO_MANY, words)
            return
        self._awaiting.setdefault((batch.queue, batch.key), {})[to, request.id] = wait
        self._leases[lease] = wait
        self._leases.move_to_end(lease)
        self._counts[to] += is_new

    def _are_too_many(self, to: Address) -> bool:
        settings = self.settings
        return self._counts[to] >= settings.max_waits_per_peer or len(self._leases) >= settings.max_waits

    def answer(self, batch: MicroBatch) -> None:
        """Tells those who await a micro-batch, if it has got there, or never will."""
        waits = self._awaiting.get((batch.queue, batch.key))
        for wait in list(waits.values()) if waits else ():
            if self._answer(wait, batch):
                self._forget(wait)

    def _answer(self, wait: Awaiting, batch: MicroBatch) -> bool:
        if batch.state in GONE:
            gone = Gone(id=wait.id, state=batch.state, reason=batch.reason, stale=batch.is_stale)
            self._out.reply(wait.to, gone)
            return True
        if _PLACE[batch.state] >= _PLACE[wait.until]:
            self._out.reply(wait.to, Reached(id=wait.id, state=batch.state))
            return True
        return False

    @contextlib.contextmanager
    def held_back(self, queue: str, key: str) -> Iterator[None]:
        """Has those who await a key hear nothing of what happens to its micro-batch meanwhile."""
        waits = self._awaiting.pop((queue, key), None)
        yield
        if waits:
            self._awaiting[queue, key] = waits

    def expire(self, now: float) -> None:
        """Forgets waits that nobody renewed."""
        while self._leases and (wait := next(iter(self._leases.values()))).deadline <= now:
            self._forget(wait)

    def deadlines(self) -> list[float]:
        """Returns when the first of the waits ends, if there is any."""
        return [wait.deadline for wait in itertools.islice(self._leases.values(), 1)]

    def _forget(self, wait: Awaiting) -> None:
        del self._leases[_lease_of(wait)]
        waits = self._awaiting[wait.queue, wait.key]
        del waits[wait.to, wait.id]
        if not waits:
            del self._awaiting[wait.queue, wait.key]
        self._counts[wait.to] -= 1
        if not self._counts[wait.to]:
            del self._counts[wait.to]


def _lease_of(wait: Awaiting) -> tuple[str, str, WaitKey]:
    return wait.queue, wait.key, (wait.to, wait.id)
