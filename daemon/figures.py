"""The ledger's books as figures, for metrics: one frozen look, taken by the loop."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from forebay.shm import SlotState
from forebay.wire import MicroBatchState, Received

from .book import Book
from .measures import Distribution, Measures
from .train_queue import TrainQueue


@dataclasses.dataclass(frozen=True, slots=True)
class QueueFigures:
    """One queue.

    Attributes:
        name: As its users call it.
        ready: READY micro-batches.
        on_device: Promoted micro-batches that are not finished.
        has_trainer: Whether a trainer is attached.
        trainer_waits_s: Seconds since which it has wanted what there is not; 0 if it does not.
        is_paused: Whether an operator holds it back.
    """

    name: str
    ready: int
    on_device: int
    has_trainer: bool
    trainer_waits_s: float
    is_paused: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What a daemon holds, and what it has counted since its start.

    Attributes:
        draining: Whether no new offers are taken.
        slots: How many are in each state.
        slot_bytes: Bytes reserved, by all slots together.
        waiting_offers: Offers that have no slot yet.
        queues: Those with a trainer first, else in the order in which they were first heard of.
        counters: As the status shows them.
        received: Chunks, by codec.
        measured: The histograms of `Measures`, by attribute.
    """

    draining: bool
    slots: Mapping[SlotState, int]
    slot_bytes: int
    waiting_offers: int
    queues: tuple[QueueFigures, ...]
    counters: Mapping[str, int]
    received: Mapping[str, Received]
    measured: Mapping[str, Distribution]


def figures_of(book: Book, now: float) -> Figures:
    """Takes a look at all books."""
    states = Counter(slot.state for slot in book.slots)
    return Figures(
        draining=book.draining,
        slots={state: states[state] for state in SlotState},
        slot_bytes=sum(slot.slot_bytes for slot in book.slots),
        waiting_offers=len(book.waiting()),
        queues=_queues(book, now),
        counters=book.out.counters + book.incoming.faults(),
        received=book.incoming.received(),
        measured=distributions(book.measures),
    )


def distributions(measures: Measures) -> dict[str, Distribution]:
    """Returns what all histograms hold."""
    return {name: histogram.now() for name, histogram in vars(measures).items()}


def _queues(book: Book, now: float) -> tuple[QueueFigures, ...]:
    is_there = MicroBatchState.ON_DEVICE
    on_device = Counter(batch.queue for batch in book.batches.values() if batch.state is is_there)
    rows = [
        _queue(queue, on_device[queue.name], now, is_paused=book.is_paused(queue.name)) for queue in book.queues
    ]
    return tuple(sorted(rows, key=lambda row: not row.has_trainer))


def _queue(queue: TrainQueue, on_device: int, now: float, *, is_paused: bool) -> QueueFigures:
    trainer = queue.attachment
    is_attached = trainer is not None and trainer.address is not None
    since = trainer.asks_since if trainer is not None and is_attached else 0.0
    return QueueFigures(
        name=queue.name,
        ready=len(queue.ready),
        on_device=on_device,
        has_trainer=is_attached,
        trainer_waits_s=now - since if since else 0.0,
        is_paused=is_paused,
    )
