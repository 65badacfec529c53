"""`forebay status`: the daemon, and what it holds now."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from forebay.wire import OfferStatus, PeerStatus, Status, on_one_line, printable
from forebay.wire.plain_json import json_line

from .app import COMMANDS
from .inspector import COMPLETION, Inspector, asks_daemon
from .json_option import JsonOption
from .queues import queue_table
from .slots import slot_table
from .stories import diagnose
from .table import table
from .words import age, counted, named, paragraph, size

_SHOWN_PEERS = 8
_SHOWN_OFFERS = 8


@asks_daemon()
def status(inspector: Inspector, json: JsonOption = False) -> None:
    """Show the daemon, its slots, its queues, and who uses it."""
    found = inspector.status()
    sys.stdout.write(json_line(found) if json else "\n".join(_parts(found)))


def _parts(found: Status) -> Iterator[str]:
    yield daemon_lines(found)
    yield slot_table(found.slots)
    yield queue_table(found.queues)
    if found.offers:
        yield _offer_table(found.offers[:_SHOWN_OFFERS])
    if peers := _others(found.peers):
        yield _peer_table(peers[:_SHOWN_PEERS])
    if findings := diagnose(found):
        yield "".join(paragraph(f"- {finding}", indent="  ") + "\n" for finding in findings)


def daemon_lines(found: Status) -> str:
    """Says who the daemon is, what it allows and what it has, a line each."""
    limits = found.limits
    held_bytes = sum(slot.slot_bytes for slot in found.slots)
    bound = f" of {size(found.max_private_bytes)}" if found.max_private_bytes else ""
    told = {
        "daemon": f"version {printable(found.software)}, {named(found.peer)}",
        "up": f"{age(found.uptime_s)}, {mood(found)}",
        "pool": f"{printable(found.pool)}, {counted(len(found.slots), 'slot')}, {size(held_bytes)}",
        "limits": f"{size(limits.max_micro_batch_bytes)} and {limits.max_leaves} arrays a micro-batch,"
        f" {size(limits.chunk_bytes)} a chunk",
        "memory": f"{size(found.private_bytes)}{bound}, private" if found.private_bytes else "",
        "waiting": counted(found.waiting_offers, "offer"),
        "peers": _peer_words(found),
    }
    return "".join(on_one_line(f"{name:8}{words}") + "\n" for name, words in told.items() if words)


def _peer_words(found: Status) -> str:
    commands = len(found.peers) - len(_others(found.peers))
    words = f"{found.peer_count}, the last to be heard first" if found.peer_count else ""
    return f"{words}; {counted(commands, 'command')} such as this one left out" if commands else words


def _others(peers: tuple[PeerStatus, ...]) -> list[PeerStatus]:
    """Leaves out commands that asked something, such as the one that shows this."""
    return [one for one in peers if not _is_command(one.peer.name)]


def _is_command(name: str) -> bool:
    before, _, command = name.partition(" ")
    return before == "forebay" and command in (*COMMANDS, COMPLETION)


def mood(found: Status) -> str:
    """Says whether the daemon takes micro-batches in and lends them."""
    words = "stopping" if found.stopping else "draining" if found.draining else "serving"
    return f"{words}, all paused" if found.paused else words


def _offer_table(offers: tuple[OfferStatus, ...]) -> str:
    return table(("waiting in", "key", "size", "from", "waits s", "left s"), map(_offer_row, offers))


def _offer_row(offer: OfferStatus) -> tuple[object, ...]:
    return (
        *(offer.queue, offer.key, size(offer.payload_bytes), named(offer.sender, "")),
        *(f"{offer.waits_s:.1f}", f"{offer.left_s:.1f}"),
    )


def _peer_table(peers: Sequence[PeerStatus]) -> str:
    return table(("peer", "heard s ago"), ((named(one.peer), f"{one.heard_s:.1f}") for one in peers))
