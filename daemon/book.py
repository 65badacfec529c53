"""The ledger's books: slots, queues, micro-batches, waits, counters; and the moves that concern several of them.

A micro-batch is published, lent, taken back and ended here, so that the books cannot disagree.
"""

from __future__ import annotations

from typing import Final

from forebay.shm import SlotEvent, SlotState, SlotTable
from forebay.wire import (
    Event,
    Incoming,
    MicroBatchEvent,
    MicroBatchState,
    Peer,
    RefusalCode,
    printable,
)

from .actions import Level
from .attachments import Attachments
from .end_reasons import EndReason
from .history import History
from .ledger_settings import LedgerSettings
from .measures import Measures
from .micro_batch import MicroBatch
from .outbox import Named, Outbox
from .outcomes import Outcomes
from .peers import Peers
from .queues import Queues
from .slot_moves import SlotMoves
from .train_queue import Attachment
from .waits import Waits

EVENT_OF_STATE: Final = {state: Event(state) for state in MicroBatchState}
"""What the log says when a micro-batch gets there."""

_SHORT_SHARE = 0.85
_WITH_TRAINER = (SlotState.LENT, SlotState.QUARANTINED)


class Book:
    """All that the daemon knows.

    Args:
        settings: See `LedgerSettings`.
        slots: The slots, as created or found.
        incoming: What the threads that receive look at.
        me: This daemon, for answers.
        epoch: This run of the daemon.

    Attributes:
        history: What has happened lately.
        out: What was decided.
        batches: Every micro-batch that is alive, by queue and key, oldest offer first.
        outcomes: What is remembered of those that are over.
        queues: See `Queues`.
        attachments: See `Attachments`.
        waits: See `Waits`.
        slot_moves: See `SlotMoves`.
        peers: Orchestrators and inspectors that said hello.
        is_stopping: Whether the daemon stops: no new offers are taken.
        is_drained: Whether an operator said that no new offers are taken.
        paused: Queues of which nothing is lent, by an operator's order; an empty name stands for all.
        private_bytes: Private memory of this process when it was looked at last.
        measures: How long the moves took.
    """

    def __init__(
        self, settings: LedgerSettings, slots: SlotTable, incoming: Incoming, me: Peer, epoch: str
    ) -> None:
        self.settings = settings
        self.slots = slots
        self.incoming = incoming
        self.me = me
        self.epoch = epoch
        self.is_stopping = False
        self.is_drained = False
        self.paused: set[str] = set()
        self.private_bytes = 0
        self.history = History(settings.remembered_events)
        self.out = Outbox(self.history, settings.least_level)
        self.batches: dict[tuple[str, str], MicroBatch] = {}
        self.outcomes = Outcomes(settings.remembered_keys, self.out)
        self.queues = Queues(settings.max_queues, self.batches)
        self.attachments = Attachments(self.out)
        self.waits = Waits(settings, self.out)
        self.slot_moves = SlotMoves(slots, incoming, self.out)
        self.peers = Peers(settings.max_peers)
        self.measures = Measures()
        self._sequence = 0

    def change(self, settings: LedgerSettings) -> None:
        """Goes on with other settings: all but the limits, the lease of a wait and what has a size of its own."""
        self.settings = self.waits.settings = settings
        self.queues.max_queues = settings.max_queues
        self.out.least_level = settings.least_level

    # Looking up.

    def is_name(self, name: str) -> bool:
        """Tells whether a key, queue or attempt has an acceptable length."""
        return 0 < len(name.encode()) <= self.settings.limits.max_key_bytes

    def named(self, queue: str, key: str) -> Named:
        """Returns the names of a micro-batch for the log; none where they are too long to be kept."""
        return {"queue": queue, "key": key} if self.is_name(queue) and self.is_name(key) else {}

    def find(self, queue: str, key: str) -> MicroBatch | None:
        """Returns the micro-batch of a key: alive, or its remembered outcome."""
        return self.batches.get((queue, key)) or self.outcomes.find(queue, key)

    def waiting(self) -> list[MicroBatch]:
        """Returns the offers that have no slot yet, oldest first."""
        return [
            batch for batch in self.batches.values() if batch.state is MicroBatchState.OFFERED and batch.slot < 0
        ]

    def is_with_trainer(self, batch: MicroBatch) -> bool:
        """Tells whether a trainer holds a micro-batch, in a slot or on its device."""
        if batch.state is MicroBatchState.ON_DEVICE:
            return True
        return batch.slot >= 0 and self.slots[batch.slot].state in _WITH_TRAINER

    @property
    def is_short_of_memory(self) -> bool:
        """Whether little is left of the private memory that this process may have."""
        return 0 < _SHORT_SHARE * self.settings.max_private_bytes < self.private_bytes

    @property
    def memory_words(self) -> str:
        """How much private memory this process has, and may have."""
        has, bound = self.private_bytes >> 20, self.settings.max_private_bytes >> 20
        return f"the daemon has {has} MiB of private memory, and ends at {bound} MiB"

    @property
    def draining(self) -> bool:
        """Whether no new offers are taken."""
        return self.is_stopping or self.is_drained

    @property
    def why_draining(self) -> str:
        """In words."""
        if self.is_stopping:
            return "the daemon is shutting down"
        return "an operator drains the daemon: it takes nothing in until it is resumed (forebay resume)"

    def is_paused(self, queue: str) -> bool:
        """Tells whether an operator holds a queue back."""
        return bool(self.paused) and (queue in self.paused or "" in self.paused)

    def next_sequence(self, at_least: int = 0) -> int:
        """Returns a place behind all those given so far."""
        self._sequence = max(self._sequence + 1, at_least)
        return self._sequence

    # Moves.

    def move(
        self,
        batch: MicroBatch,
        event: MicroBatchEvent,
        now: float,
        reason: str = "",
        level: Level = Level.DEBUG,
    ) -> None:
        """Moves a micro-batch and tells those who await it."""
        batch.move(event, now, reason)
        fields = {"reason": reason} if reason else {}
        self.log(level, EVENT_OF_STATE[batch.state], batch, **fields)
        self.waits.answer(batch)

    def log(self, level: Level, event: Event, batch: MicroBatch, **fields: object) -> None:
        """Logs something about a micro-batch."""
        about = {"queue": batch.queue, "key": batch.key, "slot": batch.slot, "generation": batch.generation}
        self.out.log_fields(level, event, about | fields if fields else about)

    def publish(self, batch: MicroBatch, now: float) -> None:
        """Makes a filled slot READY, at the end of its queue or in the place that it inherited."""
        self.slot_moves.stop_filling(batch)
        batch.was_published = True
        if batch.sequence == 0:
            batch.sequence = self.next_sequence()
        batch.ready_at = batch.queued_at = now
        self.slot_moves.apply(batch, SlotEvent.PUBLISH)
        self.move(batch, MicroBatchEvent.PUBLISH, now)
        self.queues.of(batch.queue).insert(batch)
        self.out.counters["published"] += 1
        self.out.counters["published_bytes"] += batch.payload_bytes
        self.measures.stage_s.observe(now - batch.came_at)
        self.measures.payload_bytes.observe(batch.payload_bytes)

    def lend(self, batch: MicroBatch, to: Attachment, now: float) -> None:
        """Lends a READY slot to a trainer."""
        self.queues.of(batch.queue).remove(batch)
        batch.lent_at = now
        self.slot_moves.apply(batch, SlotEvent.LEND, holder=to.holder)
        self.measures.queue_s.observe(now - batch.queued_at)
        self.log(Level.DEBUG, Event.LENT, batch, **who(to.peer))

    def release(self, batch: MicroBatch, now: float) -> None:
        """Frees the slot that a trainer needs no longer."""
        self.log(Level.DEBUG, Event.RELEASED, batch)
        self.slot_moves.give_back(batch, SlotEvent.RELEASE)
        self.measures.lent_s.observe(now - batch.lent_at)
        batch.lent_at = 0.0

    def quarantine(self, batch: MicroBatch, holder: Attachment) -> None:
        """Takes a slot away from a holder that may still read it, unless that was done before."""
        if self.slots[batch.slot].state is SlotState.LENT:
            self.slot_moves.apply(batch, SlotEvent.HOLDER_DIED, holder=holder.holder)
            self.log(Level.INFO, Event.QUARANTINED, batch, **who(holder.peer))

    def ready_again(self, batch: MicroBatch, now: float) -> None:
        """Puts a quarantined slot back in its old place, once its holder's lock is free."""
        batch.was_told_stale, batch.lent_at, batch.queued_at = False, 0.0, now
        self.slot_moves.apply(batch, SlotEvent.HOLDER_LOCK_FREE)
        self.log(Level.INFO, Event.RETURNED, batch)
        self.queues.of(batch.queue).insert(batch)

    # Ends.

    def drop(self, batch: MicroBatch, now: float, reason: str, why: EndReason | None = None) -> None:
        """Ends a micro-batch that the trainer does not hold and frees its slot; see `finish`."""
        if batch.state is MicroBatchState.READY:
            self.queues.of(batch.queue).remove(batch)
            self.slot_moves.give_back(batch, SlotEvent.DROP)
        else:
            self.slot_moves.give_back(batch, SlotEvent.ABANDON)
        self.finish(batch, MicroBatchEvent.DROP, now, reason, why)

    def consume_ready(self, batch: MicroBatch, now: float) -> None:
        """Ends a READY micro-batch whose key was trained by another way, and frees its slot."""
        self.queues.of(batch.queue).remove(batch)
        self.slot_moves.give_back(batch, SlotEvent.DROP)
        self.move(batch, MicroBatchEvent.PROMOTE, now)
        self.finish(batch, MicroBatchEvent.CONSUME, now)

    def supersede(self, batch: MicroBatch, now: float) -> None:
        """Ends a micro-batch whose key a newer attempt takes over, and tells whoever still sends it."""
        words = f"a newer attempt for {printable(batch.key)!r} took this one's place"
        self.outcomes.refuse_attempt(batch, RefusalCode.REPLACED, words)
        # Those who await the key await the newer attempt from now on.
        with self.waits.held_back(batch.queue, batch.key):
            self.drop(batch, now, "replaced", EndReason.REPLACED)

    def forget_offer(self, batch: MicroBatch, now: float, reason: str) -> None:
        """Ends an offer that was refused; another stage call may use its key."""
        self.slot_moves.give_back(batch, SlotEvent.ABANDON)
        self.move(batch, MicroBatchEvent.DROP, now, reason)
        del self.batches[batch.queue, batch.key]
        self.queues.forget_if_unused(batch.queue)

    def finish(
        self,
        batch: MicroBatch,
        event: MicroBatchEvent,
        now: float,
        reason: str = "",
        why: EndReason | None = None,
    ) -> None:
        """Ends a micro-batch and remembers its outcome.

        Args:
            batch: It.
            event: How it ends.
            now: Monotonic second.
            reason: Why, in words.
            why: Why, to be counted; None for what was trained, and for what is counted as stale.
        """
        self._measure_end(batch, event, now)
        is_gone = event in (MicroBatchEvent.DROP, MicroBatchEvent.LOSE)
        self.move(batch, event, now, reason, Level.WARNING if is_gone else Level.DEBUG)
        if why is not None:
            self.out.counters[f"{batch.state}_{why}"] += 1
        batch.forget_contents()
        key = (batch.queue, batch.key)
        if self.batches.get(key) is batch:
            del self.batches[key]
        self.outcomes.keep(batch)
        self.queues.forget_if_unused(batch.queue)
        if not batch.fell_silent:  # its attempt may still go on
            self.outcomes.record_end(batch)
        self.out.counters[f"finished_{batch.state}"] += 1

    def _measure_end(self, batch: MicroBatch, event: MicroBatchEvent, now: float) -> None:
        # What is promoted and consumed by one and the same message was not seen on the device.
        if event is MicroBatchEvent.CONSUME and batch.since < now:
            self.measures.on_device_s.observe(now - batch.since)


def who(peer: Peer | None) -> dict[str, object]:
    """Returns the fields in which the log tells of a peer; none for nobody."""
    return {} if peer is None else {"peer": peer.name, "pid": peer.pid, "host": peer.host}
