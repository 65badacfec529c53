"""The ledger's books as the inspector sees them."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.wire import FaultStatus, OfferStatus, PeerStatus, QueueStatus, SlotStatus, Status

from .book import Book
from .micro_batch import MicroBatch
from .staleness import Staleness
from .train_queue import TrainQueue

_SHOWN_PEERS = 100


def describe(
    book: Book,
    staleness: Staleness,
    request_id: int,
    *,
    software: str,
    pool: str,
    started: float,
    now: float,
) -> Status:
    """Makes the answer to `GetStatus`; ages are seconds before `now`."""
    waiting = book.waiting()
    return Status(
        id=request_id,
        software=software,
        epoch=book.epoch,
        peer=book.me,
        uptime_s=now - started,
        draining=book.draining,
        stopping=book.is_stopping,
        paused="" in book.paused,
        pool=pool,
        waiting_offers=len(waiting),
        offers=tuple(_offer(book, batch, now) for batch in waiting),
        peers=tuple(PeerStatus(peer=peer, heard_s=now - at) for peer, at in book.peers.latest(_SHOWN_PEERS)),
        peer_count=len(book.peers),
        limits=book.settings.limits,
        private_bytes=book.private_bytes if book.settings.max_private_bytes else 0,
        max_private_bytes=book.settings.max_private_bytes,
        slots=tuple(_slots(book, staleness, now)),
        queues=tuple(_queue(book, queue, now) for queue in book.queues),
        counters=dict(book.out.counters + book.incoming.faults()),
        faults=tuple(_faults(book, now)),
    )


def _faults(book: Book, now: float) -> Iterator[FaultStatus]:
    for counter, last in book.incoming.peer_faults.last().items():
        yield FaultStatus(counter=counter, age_s=max(0.0, now - last.at), by=last.by)


def _slots(book: Book, staleness: Staleness, now: float) -> list[SlotStatus]:
    by_slot = {batch.slot: batch for batch in book.batches.values() if batch.slot >= 0}
    holders = {index: attachment.peer for attachment in book.attachments for index in attachment.lent}
    fill_lease_s = book.settings.fill_lease_s
    rows = []
    for slot in book.slots:
        batch = by_slot.get(slot.index)
        row = SlotStatus(
            index=slot.index,
            generation=slot.generation,
            state=slot.state.name,
            slot_bytes=slot.slot_bytes,
            queue=batch.queue if batch else "",
            key=batch.key if batch else "",
            payload_bytes=batch.payload_bytes if batch else 0,
            received_bytes=batch.arrivals.received_bytes if batch and batch.arrivals else 0,
            expected_bytes=batch.arrivals.total_bytes if batch and batch.arrivals else 0,
            age_s=now - batch.since if batch else 0.0,
            offered_s=now - batch.offered_at if batch else 0.0,
            policy_version=batch.policy_version if batch else None,
            stale_in_s=staleness.expires_s(batch, now) if batch else None,
            holder=holders.get(slot.index),
            held_s=now - batch.lent_at if batch and batch.lent_at else 0.0,
            sender=book.peers.find(batch.sender) if batch and batch.arrivals else None,
            silent_s=now - batch.silent_at(fill_lease_s) + fill_lease_s if batch and batch.arrivals else 0.0,
            lease_left_s=batch.silent_at(fill_lease_s) - now if batch and batch.arrivals else 0.0,
        )
        rows.append(row)
    return rows


def _queue(book: Book, queue: TrainQueue, now: float) -> QueueStatus:
    trainer = queue.attachment
    on_device = [batch for attachment in book.attachments.at(queue) for batch in attachment.on_device.values()]
    return QueueStatus(
        name=queue.name,
        ready=tuple(batch.key for batch in queue.ready),
        on_device=tuple(batch.key for batch in on_device),
        on_device_s=tuple(now - batch.since for batch in on_device),
        trainer=trainer.peer if trainer else None,
        trainer_since_s=now - trainer.since if trainer and trainer.is_back else 0.0,
        trainer_is_back=trainer is None or trainer.is_back,
        asks_s=now - trainer.asks_since if trainer and trainer.asks_since else 0.0,
        waits_for=trainer.wanted_keys if trainer else (),
        last_trainer=None if trainer else queue.last_trainer,
        gone_s=now - queue.gone_at if queue.gone_at and not trainer else 0.0,
        was_seen_to_go=queue.was_seen_to_go,
        policy_version=queue.policy_version,
        paused=book.is_paused(queue.name),
    )


def _offer(book: Book, batch: MicroBatch, now: float) -> OfferStatus:
    return OfferStatus(
        queue=batch.queue,
        key=batch.key,
        payload_bytes=batch.payload_bytes,
        waits_s=now - batch.since,
        left_s=batch.deadline - now,
        sender=book.peers.find(batch.sender),
        policy_version=batch.policy_version,
    )
