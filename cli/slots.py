"""`forebay slots`: what each slot of the pool holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from forebay.wire import MIB, SlotStatus
from forebay.wire.plain_json import json_line

from .inspector import Inspector, JsonOption, asks_daemon, complete_queue
from .table import peer_words, table

_HEADER = ("slot", "gen", "state", "MiB", "queue", "key", "version", "filled", "age s", "with", "held s")


@asks_daemon()
def slots(
    inspector: Inspector,
    queue: Annotated[
        str | None, typer.Option(help="only slots that hold something of it", autocompletion=complete_queue)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the slots, and what is in them."""
    found = [slot for slot in inspector.status().slots if queue is None or slot.queue == queue]
    sys.stdout.write(json_line(found) if json else slot_table(found))


def slot_table(slots: Iterable[SlotStatus]) -> str:
    """Makes the table of some slots; beside a micro-batch stands who sends it, or who has it."""
    return table(_HEADER, map(_row, slots))


def _row(slot: SlotStatus) -> tuple[object, ...]:
    return (
        *(slot.index, slot.generation, slot.state, f"{slot.slot_bytes / MIB:.0f}", slot.queue, slot.key),
        "" if slot.policy_version is None else slot.policy_version,
        f"{slot.received_bytes / slot.expected_bytes:.0%}" if slot.expected_bytes else "",
        f"{slot.age_s:.1f}" if slot.key else "",
        peer_words(slot.holder or slot.sender),
        f"{slot.held_s:.1f}" if slot.holder else "",
    )
