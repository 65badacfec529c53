"""`forebay queue`: what one queue holds, in the order in which it is trained."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

from forebay.wire import MicroBatchState, OfferStatus, QueueStatus, SlotStatus, Status
from forebay.wire.plain_json import json_line

from .inspector import Inspector, asks_daemon
from .json_option import JsonOption
from .names import QueueArgument, unknown_queue
from .table import table
from .words import named, paragraph, quoted, size

_HEADER = ("key", "state", "size", "age s", "version", "stale in s", "slot")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One micro-batch of a queue; see `SlotStatus` for what the fields mean.

    Attributes:
        state: Of its slot; where it is in none, its own.
        filled: Which share of its bytes has arrived, while its slot is filled.
    """

    key: str
    state: str
    age_s: float
    payload_bytes: int = 0
    policy_version: int | None = None
    stale_in_s: float | None = None
    slot: int = -1
    generation: int = 0
    filled: float | None = None


@asks_daemon()
def queue(
    inspector: Inspector,
    name: QueueArgument,
    json: JsonOption = False,
) -> None:
    """Show what one queue holds, in its order."""
    status = inspector.status()
    found = next((one for one in status.queues if one.name == name), None)
    rows = list(rows_of(name, found, status))
    if found is None and not rows:
        raise unknown_queue(name, status.queues)
    if json:
        sys.stdout.write(json_line({"queue": name, "paused": bool(found and found.paused), "micro_batches": rows}))
        return
    sys.stdout.write(paragraph(_head(name, found), indent="  ") + "\n")
    sys.stdout.write(table(_HEADER, map(_cells, rows)) if rows else "no micro-batches\n")


def rows_of(name: str, queue: QueueStatus | None, status: Status) -> Iterator[Row]:
    """Yields a queue's micro-batches: those that are trained first come first."""
    slots = [slot for slot in status.slots if slot.queue == name and slot.key]
    oldest_first = sorted(slots, key=lambda slot: -slot.age_s)
    if queue is not None:
        for key, age_s in zip(queue.on_device, queue.on_device_s, strict=True):
            yield Row(key, MicroBatchState.ON_DEVICE, age_s)
    for state in ("LENT", "QUARANTINED"):
        yield from (_of_slot(slot) for slot in oldest_first if slot.state == state)
    ready = {slot.key: slot for slot in slots if slot.state == "READY"}
    yield from (_of_slot(ready[key]) for key in (queue.ready if queue is not None else ()) if key in ready)
    yield from (_of_slot(slot) for slot in oldest_first if slot.state == "FILLING")
    yield from (_of_offer(offer) for offer in status.offers if offer.queue == name)


def _of_slot(slot: SlotStatus) -> Row:
    return Row(
        key=slot.key,
        state=slot.state,
        age_s=slot.held_s if slot.holder is not None else slot.age_s,
        payload_bytes=slot.payload_bytes,
        policy_version=slot.policy_version,
        stale_in_s=slot.stale_in_s,
        slot=slot.index,
        generation=slot.generation,
        filled=slot.received_bytes / slot.expected_bytes if slot.expected_bytes else None,
    )


def _of_offer(offer: OfferStatus) -> Row:
    return Row(
        key=offer.key,
        state=MicroBatchState.OFFERED,
        age_s=offer.waits_s,
        payload_bytes=offer.payload_bytes,
        policy_version=offer.policy_version,
    )


def _cells(row: Row) -> tuple[object, ...]:
    return (
        *(row.key, row.state if row.filled is None else f"{row.state} {row.filled:.0%}"),
        *(size(row.payload_bytes) if row.payload_bytes else "", f"{row.age_s:.1f}"),
        "" if row.policy_version is None else row.policy_version,
        "" if row.stale_in_s is None else f"{row.stale_in_s:.1f}",
        "" if row.slot < 0 else f"{row.slot}.{row.generation}",
    )


def _head(name: str, queue: QueueStatus | None) -> str:
    trainer = queue.trainer if queue is not None else None
    words = f"queue {quoted(name)}: {named(trainer, 'no trainer')}"
    if queue is not None and not queue.trainer_is_back:
        words += ", not back since the daemon started"
    if queue is not None and queue.policy_version is not None:
        words += f", policy version {queue.policy_version}"
    return f"{words}, paused by an operator" if queue is not None and queue.paused else words
