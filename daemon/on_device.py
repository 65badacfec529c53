"""What only a trainer knows to be on its device: after a restart, or a key that went inline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from forebay.shm import SlotEvent
from forebay.wire import GONE, MAX_ENTRIES, Event, MicroBatchState, RefusalCode, Staged, printable

from .actions import Level, Reply
from .book import Book
from .micro_batch import MicroBatch, on_device_batch
from .train_queue import Attachment, TrainQueue


class Told(NamedTuple):
    """A key that a trainer says it has, the attempt that it came by, and whether it was trained already."""

    key: str
    attempt: str
    is_trained: bool = False


def learn_on_device(book: Book, queue: TrainQueue, attachment: Attachment, told: Told, now: float) -> None:
    """Learns what only the trainer knows, so that no repeat is trained twice.

    The orchestrator may have been faster: its offer then waits, fills, or is READY again by now. And it may have
    been dropped before: trained is trained.
    """
    known = book.find(queue.name, told.key)
    is_over = known is not None and known.state in GONE
    if known is not None and known.was_published and not is_over and known not in queue.ready:
        if told.is_trained and known.slot >= 0:
            # It is lent, and the trainer may not know that yet. Whatever becomes of the slot, it is trained.
            known.was_trained = True
            book.outcomes.record(known, state=MicroBatchState.CONSUMED, attempt="", at=now)
        return
    batch = on_device_batch(queue.name, told.key, told.attempt, now)
    book.batches[queue.name, told.key] = attachment.on_device[told.key] = batch
    book.outcomes.record(batch, holder=attachment.holder)
    book.waits.answer(batch)
    if known is not None and not is_over:
        _make_way(book, queue, known, told)


def _make_way(book: Book, queue: TrainQueue, known: MicroBatch, told: Told) -> None:
    """Ends what an orchestrator has staged or offered of that key meanwhile."""
    book.log(Level.WARNING, Event.ALREADY_ON_DEVICE, known)
    if known in queue.ready:
        queue.remove(known)
        book.slot_moves.give_back(known, SlotEvent.DROP)
        return
    if known.sender is None:
        return
    book.slot_moves.give_back(known, SlotEvent.ABANDON)
    if known.attempt == told.attempt:
        book.out.do(Reply(known.sender, Staged(id=known.offer_id, state=MicroBatchState.ON_DEVICE)))
    elif told.is_trained:
        words = f"the trainer of queue {queue.name!r} trained {printable(told.key)!r} meanwhile, by another way"
        book.out.refuse(known.sender, known.offer_id, RefusalCode.CONSUMED, words)
    else:
        words = f"the trainer of queue {queue.name!r} came back with {printable(told.key)!r} on its device"
        book.out.refuse(known.sender, known.offer_id, RefusalCode.IN_USE, words)


def why_too_many(book: Book, attachment: Attachment | None, keys: Iterable[str]) -> str:
    """Says why these keys may not be on a trainer's device as well; empty if they may.

    Of more than that the ends could not be remembered either, nor what the next daemon has to know.
    """
    present = attachment.on_device if attachment is not None else {}
    more = {key for key in keys if key not in present}
    limit = max(book.settings.remembered_keys, MAX_ENTRIES)
    if not more or len(present) + len(more) <= limit:
        return ""
    return (
        f"{len(present)} micro-batches are on this trainer's device and not finished, {len(more)} more would be;"
        f" the limit is remembered_keys, but at least {MAX_ENTRIES}: {limit}; have it set max_device_batches"
    )


def are_names(book: Book, key: str, attempt: str) -> bool:
    """Tells whether a trainer's names of a micro-batch have acceptable lengths."""
    # A key that was trained by another way has no attempt.
    return book.is_name(key) and (not attempt or book.is_name(attempt))
