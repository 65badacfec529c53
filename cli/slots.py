"""`forebay slots`: what each slot of the pool holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from forebay.wire import SlotStatus
from forebay.wire.plain_json import json_line

from .inspector import Inspector, asks_daemon
from .json_option import JsonOption
from .names import OnlyQueueOption, unknown_queue
from .table import table
from .words import named, quoted, size

_HEADER = ("slot", "state", "queue", "key", "size", "version", "age s", "with", "held s")


@asks_daemon()
def slots(inspector: Inspector, queue: OnlyQueueOption = None, json: JsonOption = False) -> None:
    """Show the slots, and what is in them."""
    status = inspector.status()
    found = [slot for slot in status.slots if queue in (None, slot.queue)]
    if queue is not None and not found and queue not in [one.name for one in status.queues]:
        raise unknown_queue(queue, status.queues)
    if json:
        sys.stdout.write(json_line({"slots": found}))
    elif found:
        sys.stdout.write(slot_table(found))
    else:
        sys.stdout.write(f"no slot holds anything of queue {quoted(str(queue))}\n")


def slot_table(slots: Iterable[SlotStatus], *, columns: int | None = None, empty: str = "") -> str:
    """Makes the table of some slots; beside a micro-batch stands who sends it, or who has it.

    Args:
        slots: Them.
        columns: See `table`.
        empty: What stands where there is nothing; a column in which nothing stands is left out.
    """
    return table(_HEADER, ([cell or empty for cell in _cells(slot)] for slot in slots), columns=columns)


def _cells(slot: SlotStatus) -> Iterator[str]:
    yield f"{slot.index}.{slot.generation}"
    yield f"{slot.state} {slot.received_bytes / slot.expected_bytes:.0%}" if slot.expected_bytes else slot.state
    yield slot.queue
    yield slot.key
    yield size(slot.payload_bytes) if slot.key else ""
    yield "" if slot.policy_version is None else str(slot.policy_version)
    yield f"{slot.age_s:.1f}" if slot.key else ""
    yield named(slot.holder or slot.sender, "")
    yield f"{slot.held_s:.1f}" if slot.holder else ""
