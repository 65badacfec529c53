"""`forebay reset`: drops what a queue holds."""

from __future__ import annotations

import sys

from forebay.wire import RefusedError, Reset, Status, WasReset
from forebay.wire.plain_json import json_line

from .confirm import YesOption, confirm
from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .names import QueueArgument
from .words import counted, quoted


@asks_daemon(only_looks=False)
def reset(
    inspector: Inspector,
    queue: QueueArgument,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Drop what a queue holds and its trainer does not."""
    if not yes:
        what = _what_goes(queue, inspector.talk(_status_or_none))
        confirm(f"Drop {what}? Nobody will train that; the sender has to stage it again.", yes=yes)
    done = inspector.ask(Reset(queue=queue), WasReset, f"the reset of {quoted(queue)}")
    told = {"queue": queue, "dropped": done.dropped}
    words = f"dropped {counted(done.dropped, 'micro-batch', 'micro-batches')} of queue {quoted(queue)}\n"
    sys.stdout.write(json_line(told) if json else words)


async def _status_or_none(daemon: Conversation) -> Status | None:
    try:
        return await daemon.status()
    except RefusedError:  # who may stage need not be allowed to look
        return None


def _what_goes(queue: str, status: Status | None) -> str:
    if status is None:
        return f"all of queue {quoted(queue)} that its trainer does not hold"
    slots = [slot for slot in status.slots if slot.queue == queue and slot.state in ("FILLING", "READY")]
    offers = sum(offer.queue == queue for offer in status.offers)
    ready = sum(slot.state == "READY" for slot in slots)
    parts = f"{ready} READY, {len(slots) - ready} filling and {offers} waiting"
    return f"all of queue {quoted(queue)} that its trainer does not hold ({parts})"
