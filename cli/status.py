"""`forebay status`: the daemon, and what it holds now."""

from __future__ import annotations

import sys

from forebay.wire import Limits, Status, on_one_line, printable

from .inspector import Conversation, Inspector, JsonOption, asks_daemon
from .plain import json_line
from .queues import queue_table
from .slots import slot_table
from .table import size


@asks_daemon()
def status(inspector: Inspector, json: JsonOption = False) -> None:
    """Show the daemon, its slots and its queues."""
    found, limits = inspector.talk(_ask)
    if json:
        sys.stdout.write(json_line(found))
    else:
        parts = (daemon_lines(found, limits), slot_table(found.slots), queue_table(found.queues))
        sys.stdout.write("\n".join(parts))


async def _ask(daemon: Conversation) -> tuple[Status, Limits]:
    return await daemon.status(), daemon.welcome.limits


def daemon_lines(found: Status, limits: Limits) -> str:
    """Says who the daemon is, what it allows and what it has, a line each."""
    held = sum(slot.slot_bytes for slot in found.slots)
    told = {
        "daemon": f"version {printable(found.software)}, pid {found.peer.pid} on {printable(found.peer.host)}",
        "up": f"{spell_s(found.uptime_s)}, {'draining' if found.draining else 'serving'}",
        "pool": f"{printable(found.pool)}, {len(found.slots)} slots, {size(held)}",
        "limits": f"{size(limits.max_micro_batch_bytes)} and {limits.max_leaves} arrays a micro-batch,"
        f" {size(limits.chunk_bytes)} a chunk",
        "waiting": f"{found.waiting_offers} offers",
    }
    return "".join(on_one_line(f"{name:8}{words}") + "\n" for name, words in told.items())


def spell_s(seconds: float) -> str:
    """Spells a time in its two largest units."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
