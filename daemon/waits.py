"""Who waits for a micro-batch's key to reach a state."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator

from forebay.wire import GONE, Await, Gone, MicroBatchState, Reached, RefusalCode

from .actions import Address
from .ledger_settings import LedgerSettings
from .micro_batch import MicroBatch
from .outbox import Outbox

_ORDER = (
    MicroBatchState.OFFERED,
    MicroBatchState.FILLING,
    MicroBatchState.READY,
    MicroBatchState.ON_DEVICE,
    MicroBatchState.CONSUMED,
)


@dataclasses.dataclass(slots=True)
class Awaiting:
    """A peer that waits for a key to reach a state."""

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
    """

    def __init__(self, settings: LedgerSettings, out: Outbox) -> None:
        self._settings = settings
        self._out = out
        self._awaiting: dict[tuple[str, str], dict[WaitKey, Awaiting]] = {}
        self._count = 0
        self._counts: Counter[Address] = Counter()

    def wait_for(self, batch: MicroBatch, to: Address, request: Await, now: float) -> None:
        """Answers now or when the micro-batch gets there; a repeated request renews its lease."""
        wait = Awaiting(to, request.id, request.until, now + self._settings.await_lease_s)
        if self._answer(wait, batch):
            return
        key = (batch.queue, batch.key)
        is_new = (to, request.id) not in self._awaiting.get(key, {})
        if is_new and self._are_too_many(to):
            words = f"{self._settings.max_waits_per_peer} waits of one peer (max_waits_per_peer), or "
            words += f"{self._settings.max_waits} of all (max_waits), are there already"
            self._out.refuse(to, request.id, RefusalCode.TOO_MANY, words)
        else:
            self._awaiting.setdefault(key, {})[to, request.id] = wait
            self._count += is_new
            self._counts[to] += is_new

    def _are_too_many(self, to: Address) -> bool:
        settings = self._settings
        return self._counts[to] >= settings.max_waits_per_peer or self._count >= settings.max_waits

    def answer(self, batch: MicroBatch) -> None:
        """Tells those who await a micro-batch, if it has got there, or never will."""
        waits = self._awaiting.get((batch.queue, batch.key), {})
        for wait_key, wait in list(waits.items()):
            if self._answer(wait, batch):
                self._forget(waits, wait_key)
        if not waits:
            self._awaiting.pop((batch.queue, batch.key), None)

    def _answer(self, wait: Awaiting, batch: MicroBatch) -> bool:
        if batch.state in GONE:
            gone = Gone(id=wait.id, state=batch.state, reason=batch.reason, stale=batch.is_stale)
            self._out.reply(wait.to, gone)
            return True
        if _ORDER.index(batch.state) >= _ORDER.index(wait.until):
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
        for key, waits in list(self._awaiting.items()):
            for wait_key in [wait_key for wait_key, wait in waits.items() if wait.deadline <= now]:
                self._forget(waits, wait_key)
            if not waits:
                del self._awaiting[key]

    def deadlines(self) -> Iterable[float]:
        """Yields when the waits end."""
        return (wait.deadline for waits in self._awaiting.values() for wait in waits.values())

    def _forget(self, waits: dict[WaitKey, Awaiting], wait_key: WaitKey) -> None:
        del waits[wait_key]
        self._count -= 1
        self._counts[wait_key[0]] -= 1
        if not self._counts[wait_key[0]]:
            del self._counts[wait_key[0]]
