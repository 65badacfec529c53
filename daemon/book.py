"""The ledger's books: slots, queues, micro-batches, waits, counters; and the moves that keep them consistent.

Every move of a slot and of the micro-batch in it happens here, so that the books cannot disagree.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec

from forebay.shm import Outcome, SlotEvent, SlotState, SlotTable
from forebay.wire import (
    GONE,
    STRANGER,
    Arrivals,
    Client,
    Gone,
    Incoming,
    Limits,
    MicroBatchEvent,
    MicroBatchState,
    Peer,
    Reached,
    RefusalCode,
    Refused,
    printable,
)

from .actions import Action, Address, AwaitWriters, Level, Log, Reply, WriteOutcome, WriteState
from .micro_batch import MicroBatch, recalled_batch
from .outcomes import LASTING, Outcomes
from .train_queue import TrainQueue

_NAME_CHARS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerSettings:
    """What the ledger's decisions depend on.

    Attributes:
        limits: Upper bounds on one micro-batch.
        fill_lease_s: Silence after which a filling slot is taken back.
        await_lease_s: Silence after which an `Await` is forgotten.
        max_waiting_offers: Offers that may wait for a slot.
        remembered_keys: Finished micro-batches whose outcome is remembered.
        max_peers: Connections that are known at once.
        max_queues: Queues that hold a micro-batch, have a trainer, or were told a version.
        max_waits: `Await`s of all peers.
        max_waits_per_peer: `Await`s of one peer.
        max_waiting_bytes: Manifests and bodies of the offers that wait for a slot.
        max_versions_behind: Policy versions that a micro-batch may be behind its queue's; -1 for any number.
        max_age_s: Age in seconds from which on a micro-batch is stale; 0 for none.
    """

    limits: Limits
    fill_lease_s: float = 10.0
    await_lease_s: float = 60.0
    max_waiting_offers: int = 256
    remembered_keys: int = 10_000
    max_peers: int = 4096
    max_queues: int = 1024
    max_waits: int = 65_536
    max_waits_per_peer: int = 4096
    max_waiting_bytes: int = 256 << 20
    max_versions_behind: int = -1
    max_age_s: float = 0.0


@dataclasses.dataclass(slots=True)
class Awaiting:
    """A peer that waits for a key to reach a state."""

    to: Address
    id: int
    until: MicroBatchState
    deadline: float


_ORDER = (
    MicroBatchState.OFFERED,
    MicroBatchState.FILLING,
    MicroBatchState.READY,
    MicroBatchState.ON_DEVICE,
    MicroBatchState.CONSUMED,
)


class Book:
    """All that the daemon knows.

    Args:
        settings: See `LedgerSettings`.
        slots: The slots, as created or found.
        incoming: What the threads that receive look at.
        me: This daemon, for answers.
        epoch: This run of the daemon.
    """

    def __init__(
        self, settings: LedgerSettings, slots: SlotTable, incoming: Incoming, me: Peer, epoch: str
    ) -> None:
        self.settings = settings
        self.slots = slots
        self.incoming = incoming
        self.me = me
        self.epoch = epoch
        self.draining = False
        self.queues: dict[str, TrainQueue] = {}
        self.batches: dict[tuple[str, str], MicroBatch] = {}
        self.filling: dict[int, MicroBatch] = {}
        self.peers: OrderedDict[Address, Peer] = OrderedDict()
        self.counters: Counter[str] = Counter()
        self._outcomes = Outcomes(settings.remembered_keys)
        self._awaiting: dict[tuple[str, str], dict[tuple[Address, int], Awaiting]] = {}
        self._wait_counts: Counter[Address] = Counter()
        self._wait_count = 0
        self._sequence = 0
        self._actions: list[Action] = []
        self._records: list[Action] = []

    # Actions.

    def do(self, *actions: Action) -> None:
        """Adds actions for the loop."""
        self._actions.extend(actions)

    def reply(self, to: Address | None, message: Reached | Refused | Gone) -> None:
        """Answers a peer, if it is still known."""
        if to is not None:
            self.do(Reply(to, message))

    def log(self, level: Level, event: str, **fields: object) -> None:
        """Adds an event for the log."""
        self.do(Log(level, event, fields))

    def take_actions(self) -> list[Action]:
        """Returns what was decided since the last call.

        Outcomes come first: a daemon that is killed in the middle has then recorded what became of a micro-batch
        before its slot is free and before anybody was told.
        """
        actions, self._actions, self._records = [*self._records, *self._actions], [], []
        return actions

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
        )
        if fields:
            outcome = msgspec.structs.replace(outcome, **fields)
        self._records.append(WriteOutcome(outcome))

    def record_end(self, batch: MicroBatch) -> None:
        """Has the end of a micro-batch remembered, and what its attempt is refused with, if that lasts."""
        refusal = self.refusal_of(batch.queue, batch.key, batch.attempt)
        if refusal is not None and refusal.code in LASTING:
            self.record(batch, code=refusal.code, words=refusal.words)
        else:
            self.record(batch)

    def refuse(self, to: Address | None, request_id: int, code: RefusalCode, words: str) -> None:
        """Refuses a request and counts it."""
        self.counters[f"refused_{code}"] += 1
        self.log(Level.WARNING, "refuse", code=code.value, words=words)
        self.reply(to, Refused(id=request_id, code=code, words=words))

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
        attempt = (batch.queue, batch.key, batch.attempt)
        self._outcomes.refuse(attempt, refusal, details=details, client=batch.client)
        if not batch.was_published:
            self.refuse(batch.sender, batch.offer_id, code, words + details)

    def recall(self, outcome: Outcome, now: float) -> None:
        """Remembers what a journal says of a micro-batch that is over."""
        if outcome.code is not None:
            attempt = (outcome.queue, outcome.key, outcome.attempt)
            self._outcomes.refuse(attempt, Refused(code=outcome.code, words=outcome.words))
        self._outcomes.keep(recalled_batch(outcome, now))

    # Looking up.

    def queue(self, name: str) -> TrainQueue:
        """Returns a queue, made at its first mention."""
        return self.queues.setdefault(name, TrainQueue(name))

    def make_room_for_queue(self, name: str) -> str:
        """Makes room for a queue, if it needs any; returns why there is none, empty if there is.

        A queue that has nothing left but a version goes: the one whose version was told longest ago.
        """
        if name in self.queues:
            return ""
        names = self.queues.keys() | {batch.queue for batch in self.batches.values()}
        if name in names or len(names) < self.settings.max_queues:
            return ""
        unused = [queue for queue in self.queues.values() if self._is_unused(queue.name)]
        if not unused:
            return f"{self.settings.max_queues} queues are in use already, max_queues"
        del self.queues[min(unused, key=lambda queue: queue.version_told_at).name]
        return ""

    def forget_if_unused(self, name: str) -> None:
        """Forgets a queue that holds nothing, has no trainer and no version; its next mention makes it anew."""
        if self._is_unused(name) and self.queues[name].policy_version is None:
            del self.queues[name]

    def _is_unused(self, name: str) -> bool:
        queue = self.queues.get(name)
        if queue is None or queue.attachment is not None or queue.ready:
            return False
        return not any(batch.queue == name for batch in self.batches.values())

    def versions_behind(self, batch: MicroBatch) -> tuple[int | None, int]:
        """Returns its queue's policy version, and how many a micro-batch is behind; 0 where one is not known."""
        queue = self.queues.get(batch.queue)
        present = queue.policy_version if queue is not None else None
        if present is None or batch.policy_version is None:
            return present, 0
        return present, present - batch.policy_version

    def is_name(self, name: str) -> bool:
        """Tells whether a key, queue or attempt has an acceptable length."""
        return 0 < len(name.encode()) <= self.settings.limits.max_key_bytes

    def find(self, queue: str, key: str) -> MicroBatch | None:
        """Returns the micro-batch of a key: alive, or its remembered outcome."""
        return self.batches.get((queue, key)) or self._outcomes.find(queue, key)

    def refusal_of(self, queue: str, key: str, attempt: str, client: Client = STRANGER) -> Refused | None:
        """Returns what an attempt that was once taken in was refused with after all, as a client may hear it."""
        return self._outcomes.refusal_of((queue, key, attempt), client)

    def waiting(self) -> list[MicroBatch]:
        """Returns the offers that have no slot yet, oldest first."""
        return [
            batch for batch in self.batches.values() if batch.state is MicroBatchState.OFFERED and batch.slot < 0
        ]

    # Moves.

    def loan(self, batch: MicroBatch, slot_index: int) -> None:
        """Takes a FREE slot for a micro-batch."""
        slot = self.slots[slot_index]
        self.slots.apply(slot_index, slot.generation, SlotEvent.LOAN)
        batch.slot, batch.generation = slot_index, slot.generation

    def publish(self, batch: MicroBatch, now: float) -> None:
        """Makes a filled slot READY, at the end of its queue or in the place that it inherited."""
        self._stop_filling(batch)
        batch.was_published = True
        if batch.sequence == 0:
            batch.sequence = self.next_sequence()
        self._move_slot(batch, SlotEvent.PUBLISH)
        self.move(batch, MicroBatchEvent.PUBLISH, now)
        self.queue(batch.queue).insert(batch)
        self.counters["published"] += 1
        self.counters["published_bytes"] += batch.payload_bytes

    def give_back_slot(self, batch: MicroBatch, event: SlotEvent) -> None:
        """Frees a micro-batch's slot, if it has one."""
        if batch.slot < 0:
            return
        self._stop_filling(batch)
        self._move_slot(batch, event)
        batch.slot = -1

    def fill(self, batch: MicroBatch, arrivals: Arrivals) -> None:
        """Has chunks for a micro-batch that has a slot written there from now on."""
        batch.arrivals = arrivals
        self.filling[batch.slot] = batch
        self.incoming.open(arrivals)

    def _stop_filling(self, batch: MicroBatch) -> None:
        """Has nothing more written to a slot; what is done to it afterwards waits for who still writes."""
        arrivals, batch.arrivals = batch.arrivals, None
        self.filling.pop(batch.slot, None)
        if arrivals is not None:
            self.incoming.close(arrivals)
            if not arrivals.is_complete:
                self.do(AwaitWriters(arrivals))

    def drop(self, batch: MicroBatch, now: float, reason: str) -> None:
        """Ends a micro-batch that the trainer does not hold and frees its slot."""
        if batch.state is MicroBatchState.READY:
            self.queue(batch.queue).remove(batch)
            self.give_back_slot(batch, SlotEvent.DROP)
        else:
            self.give_back_slot(batch, SlotEvent.ABANDON)
        self.finish(batch, MicroBatchEvent.DROP, now, reason)

    def consume_ready(self, batch: MicroBatch, now: float) -> None:
        """Ends a READY micro-batch whose key was trained by another way, and frees its slot."""
        self.queue(batch.queue).remove(batch)
        self.give_back_slot(batch, SlotEvent.DROP)
        self.move(batch, MicroBatchEvent.PROMOTE, now)
        self.finish(batch, MicroBatchEvent.CONSUME, now)

    def finish(self, batch: MicroBatch, event: MicroBatchEvent, now: float, reason: str = "") -> None:
        """Ends a micro-batch and remembers its outcome."""
        self.move(batch, event, now, reason)
        batch.forget_contents()
        key = (batch.queue, batch.key)
        if self.batches.get(key) is batch:
            del self.batches[key]
        self._outcomes.keep(batch)
        self.forget_if_unused(batch.queue)
        if not batch.fell_silent:  # its attempt may still go on
            self.record_end(batch)
        self.counters[f"finished_{batch.state}"] += 1
        if batch.state in GONE:
            self.log(
                Level.WARNING,
                batch.state.value,
                queue=batch.queue,
                key=batch.key,
                reason=reason,
            )

    def supersede(self, batch: MicroBatch, now: float) -> None:
        """Ends a micro-batch whose key a newer attempt takes over, and tells whoever still sends it."""
        self.refuse_attempt(
            batch, RefusalCode.REPLACED, f"a newer attempt for {printable(batch.key)!r} took this one's place"
        )
        # Those who await the key await the newer attempt from now on.
        waits = self._awaiting.pop((batch.queue, batch.key), None)
        self.drop(batch, now, "replaced")
        if waits:
            self._awaiting[batch.queue, batch.key] = waits

    def move(self, batch: MicroBatch, event: MicroBatchEvent, now: float, reason: str = "") -> None:
        """Moves a micro-batch and tells those who await it."""
        batch.move(event, now, reason)
        self.log(Level.DEBUG, batch.state.value, queue=batch.queue, key=batch.key, slot=batch.slot)
        self.answer_waits(batch)

    def answer_waits(self, batch: MicroBatch) -> None:
        """Tells those who await a micro-batch, if it has got there, or never will."""
        waits = self._awaiting.get((batch.queue, batch.key), {})
        for wait_key, wait in list(waits.items()):
            if self._answer(wait, batch):
                self._forget_wait(waits, wait_key)
        if not waits:
            self._awaiting.pop((batch.queue, batch.key), None)

    def lend(self, batch: MicroBatch, holder: str) -> None:
        """Lends a READY slot to a holder."""
        self.queue(batch.queue).remove(batch)
        self._move_slot(batch, SlotEvent.LEND, holder=holder)

    def quarantine(self, batch: MicroBatch, holder: str) -> None:
        """Takes a LENT slot away from a holder that may still read it."""
        self._move_slot(batch, SlotEvent.HOLDER_DIED, holder=holder)

    def ready_again(self, batch: MicroBatch) -> None:
        """Puts a quarantined slot back in its old place, once its holder's lock is free."""
        self._move_slot(batch, SlotEvent.HOLDER_LOCK_FREE)
        batch.was_told_stale = False
        self.queue(batch.queue).insert(batch)

    def next_sequence(self, at_least: int = 0) -> int:
        """Returns a place behind all those given so far."""
        self._sequence = max(self._sequence + 1, at_least)
        return self._sequence

    # Waits.

    def wait_for(
        self, batch: MicroBatch, to: Address, request_id: int, until: MicroBatchState, now: float
    ) -> None:
        """Answers now or when the micro-batch gets there; a repeated request renews its lease."""
        wait = Awaiting(to, request_id, until, now + self.settings.await_lease_s)
        if self._answer(wait, batch):
            return
        waits = self._awaiting.get((batch.queue, batch.key), {})
        is_new = (to, request_id) not in waits
        if is_new and self._has_too_many_waits(to):
            words = f"{self.settings.max_waits_per_peer} waits of one peer (max_waits_per_peer), or "
            words += f"{self.settings.max_waits} of all (max_waits), are there already"
            self.refuse(to, request_id, RefusalCode.BAD_REQUEST, words)
        else:
            self._awaiting.setdefault((batch.queue, batch.key), waits)[to, request_id] = wait
            self._wait_count += is_new
            self._wait_counts[to] += is_new

    def _has_too_many_waits(self, to: Address) -> bool:
        settings = self.settings
        return self._wait_counts[to] >= settings.max_waits_per_peer or self._wait_count >= settings.max_waits

    def _forget_wait(self, waits: dict[tuple[Address, int], Awaiting], wait_key: tuple[Address, int]) -> None:
        del waits[wait_key]
        self._wait_count -= 1
        self._wait_counts[wait_key[0]] -= 1
        if not self._wait_counts[wait_key[0]]:
            del self._wait_counts[wait_key[0]]

    def expire_waits(self, now: float) -> None:
        """Forgets waits that nobody renewed."""
        for key, waits in list(self._awaiting.items()):
            for wait_key in [wait_key for wait_key, wait in waits.items() if wait.deadline <= now]:
                self._forget_wait(waits, wait_key)
            if not waits:
                del self._awaiting[key]

    def wait_deadlines(self) -> Iterable[float]:
        """Yields when the waits end."""
        return (wait.deadline for waits in self._awaiting.values() for wait in waits.values())

    def _answer(self, wait: Awaiting, batch: MicroBatch) -> bool:
        if batch.state in GONE:
            gone = Gone(id=wait.id, state=batch.state, reason=batch.reason, stale=batch.is_stale)
            self.reply(wait.to, gone)
            return True
        if _ORDER.index(batch.state) >= _ORDER.index(wait.until):
            self.reply(wait.to, Reached(id=wait.id, state=batch.state))
            return True
        return False

    def _move_slot(self, batch: MicroBatch, event: SlotEvent, *, holder: str = "") -> None:
        slot = self.slots.apply(batch.slot, batch.generation, event)
        sequence = 0 if slot.state is SlotState.FREE else batch.sequence
        self.do(WriteState(slot.index, slot.state, sequence, holder))


def shortened(peer: Peer) -> Peer:
    """Returns a peer's description as it is kept and shown: its names may be of any length."""
    return Peer(name=peer.name[:_NAME_CHARS], pid=peer.pid, host=peer.host[:_NAME_CHARS])
