"""Decisions about how trainers come and go, and what becomes of what they held."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from forebay.wire import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Detach,
    Done,
    Event,
    MicroBatchEvent,
    Peer,
    RefusalCode,
)

from .actions import Address, ForgetHolder, Level, Reply
from .book import Book, who
from .end_reasons import EndReason
from .lending import Lending
from .micro_batch import MicroBatch
from .on_device import Told, are_names, learn_on_device, why_too_many
from .peers import shortened
from .staleness import Staleness
from .train_queue import Attachment, TrainQueue

Refusal = tuple[RefusalCode, str]


class Attaching:
    """Attaches trainers, and ends their attachments.

    Args:
        book: The shared books.
        staleness: Tells a trainer that is back what is stale.
        lending: Repeats lends.
    """

    def __init__(self, book: Book, staleness: Staleness, lending: Lending) -> None:
        self._book = book
        self._staleness = staleness
        self._lending = lending

    # Coming.

    def attach(self, address: Address, request: Attach, now: float, holder_fault: str) -> None:
        """Attaches a trainer, or the same one again after a lost connection or a daemon restart.

        Args:
            address: Its connection.
            request: What it says.
            now: Monotonic second.
            holder_fault: Why its lock cannot stand for it; empty if it can.
        """
        mistakes = self._mistakes(request, holder_fault)
        refusal = next(itertools.chain(mistakes, self._conflicts(request, now)), None)
        if refusal is not None:
            self._book.out.refuse(address, request.id, *refusal)
            return
        queue = self._book.queues.of(request.queue)
        attachment = self._take_place(queue, address, request, now)
        self._lending.lend_again(attachment, set(request.held), now)
        self._staleness.tell_again(queue, now)
        for key, attempt in request.on_device:
            learn_on_device(self._book, queue, attachment, Told(key, attempt), now)

    def _mistakes(self, request: Attach, holder_fault: str) -> Iterator[Refusal]:
        """Yields each reason why nobody could be attached by these words."""
        book = self._book
        if request.version != PROTOCOL_VERSION:
            yield RefusalCode.VERSION, f"trainer speaks protocol {request.version}, daemon {PROTOCOL_VERSION}"
        if not _is_holder_name(request.holder) or not book.is_name(request.queue):
            words = "the queue's or holder's name is too long, empty, or has odd characters"
            yield RefusalCode.BAD_REQUEST, words
        if holder_fault:
            yield RefusalCode.BAD_REQUEST, holder_fault
        if not all(are_names(book, *entry) for entry in request.on_device):
            words = f"a key or attempt on the device is longer than {book.settings.limits.max_key_bytes} bytes"
            yield RefusalCode.BAD_REQUEST, words

    def _conflicts(self, request: Attach, now: float) -> Iterator[Refusal]:
        """Yields what there is that keeps a trainer out; where there is nothing, its queue has room."""
        book = self._book
        elsewhere = book.attachments.find(request.holder)
        if elsewhere is not None and elsewhere[0].name != request.queue:
            words = f"this holder is attached to queue {elsewhere[0].name!r}; a lock stands for one attachment"
            yield RefusalCode.BAD_REQUEST, words
        attachment = elsewhere[1] if elsewhere is not None else None
        if words := why_too_many(book, attachment, (key for key, _ in request.on_device)):
            yield RefusalCode.TOO_MANY, words
        if words := book.queues.make_room_for(request.queue):
            yield RefusalCode.TOO_MANY, words
        if words := self._who_has(request, now):
            yield RefusalCode.QUEUE_TAKEN, words

    def _who_has(self, request: Attach, now: float) -> str:
        """Says which other trainer has a queue; empty if none."""
        present = self._book.queues.trainer_of(request.queue)
        if present is None or present.holder == request.holder:
            return ""
        if present.address is None and self._book.attachments.find(request.holder) is not None:
            return ""  # both were found there, and the other is not attached
        since = f"for {now - present.since:.1f} s" if present.is_back else "not back since the daemon started"
        return f"queue {request.queue!r} has a live trainer: {present.peer}, {since}"

    def _take_place(self, queue: TrainQueue, address: Address, request: Attach, now: float) -> Attachment:
        out, peer = self._book.out, shortened(request.peer)
        attachment = queue.attachment = self._book.attachments.know(queue, request.holder, peer, now)
        if not attachment.is_back:
            attachment.is_back, attachment.since = True, now
        attachment.address, attachment.peer = address, peer
        attachment.credit_total = attachment.lent_total = 0
        attachment.asks_since = 0.0
        out.log(Level.INFO, Event.ATTACH, queue=queue.name, **who(peer))
        attached = Attached(id=request.id, epoch=self._book.epoch, limits=self._book.settings.limits)
        out.do(Reply(address, attached))
        return attachment

    # Going.

    def detach(self, address: Address, request: Detach, now: float) -> None:
        """Ends an attachment; its slots are quarantined until its lock is free."""
        found = self._book.attachments.of(address, request.holder, request.id)
        if found is None:
            return
        _, attachment = found
        attachment.address = None
        for batch in attachment.lent.values():
            self._book.quarantine(batch, attachment)
        reason = "its trainer detached before it was finished"
        self._lose_on_device(attachment, now, reason, EndReason.DETACHED)
        self._book.out.do(Reply(address, Done(id=request.id)))

    def holder_free(self, holder: str, now: float) -> None:
        """Hears from the kernel that a trainer is gone: its slots are READY again, in their old places."""
        found = self._book.attachments.pop(holder)
        if found is None:
            return
        queue, attachment = found
        for batch in attachment.lent.values():
            self._take_back(batch, attachment, now)
        peer = attachment.peer
        reason = f"its trainer, {peer}, died before it was finished"
        self._lose_on_device(attachment, now, reason, EndReason.DIED)
        self._book.out.log(Level.INFO, Event.DETACH, queue=queue.name, **who(peer))
        queue.left(peer, now, was_seen=attachment.is_back)
        self._book.out.do(ForgetHolder(holder))
        if queue.attachment is attachment:
            queue.attachment = next(self._book.attachments.at(queue), None)
            self._book.queues.forget_if_unused(queue.name)
        self._lending.lend(queue, now)  # to the other of two holders

    def _take_back(self, batch: MicroBatch, holder: Attachment, now: float) -> None:
        self._book.quarantine(batch, holder)
        self._book.ready_again(batch, now)
        if batch.was_trained:
            self._book.consume_ready(batch, now)
        elif batch.was_reset:
            self._book.drop(batch, now, "the queue was reset", EndReason.RESET)

    def _lose_on_device(self, attachment: Attachment, now: float, reason: str, why: EndReason) -> None:
        for batch in attachment.on_device.values():
            self._book.finish(batch, MicroBatchEvent.LOSE, now, reason, why)
        attachment.on_device.clear()

    # What a dead daemon left.

    def adopt(self, holder: str, peer: Peer, batch: MicroBatch, now: float) -> None:
        """Takes over a slot that a dead daemon had lent; its trainer attaches again, or is found dead."""
        self._found(holder, peer, batch, now).lent[batch.slot] = batch

    def adopt_on_device(self, holder: str, peer: Peer, batch: MicroBatch, now: float) -> None:
        """Takes over what a dead daemon knew to be on a trainer's device."""
        self._book.batches[batch.queue, batch.key] = batch
        self._found(holder, peer, batch, now).on_device[batch.key] = batch

    def _found(self, holder: str, peer: Peer, batch: MicroBatch, now: float) -> Attachment:
        attachment = self._book.attachments.know(self._book.queues.of(batch.queue), holder, peer, now)
        attachment.is_back = False
        return attachment


def _is_holder_name(name: str) -> bool:
    # It becomes a file's name in the pool.
    return 0 < len(name) <= 64 and name.isascii() and name.isalnum()
