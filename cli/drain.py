"""`forebay drain`: has the daemon take nothing in any more, and waits for what is there to be trained."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated

import typer

from forebay.wire import Drain, ForebayError, Status, UsageError, Valves, on_one_line
from forebay.wire.plain_json import json_line

from .history import FOLLOW_S, Reading, read_last, read_next
from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .stories import Fault, Finding, diagnose
from .streams import say
from .valves import tell_valves
from .words import age, paragraph

_WAIT_S = 3600.0
_STAYS = "the daemon stays drained: forebay resume undoes that"


class NotDrainedError(ForebayError):
    """The time was over before all was trained; the daemon goes on draining."""


@asks_daemon(only_looks=False)
def drain(
    inspector: Inspector,
    wait: Annotated[bool, typer.Option("--wait", help="until all that is there is trained")] = False,
    wait_s: Annotated[
        float | None, typer.Option(help=f"seconds that --wait may take; default {_WAIT_S:g}", min=0)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Take nothing in any more, until resume."""
    if wait_s is not None and not wait:
        raise UsageError("option --wait-s is for --wait", remedy="give that as well")
    if not wait:
        tell_valves(inspector.ask(Drain(), Valves, "the drain"), as_json=json)
        return
    took_s = inspector.talk(lambda daemon: _drain(daemon, _WAIT_S if wait_s is None else wait_s))
    told = {"draining": True, "left": 0, "took_s": round(took_s, 3)}
    sys.stdout.write(json_line(told) if json else f"nothing is left, after {age(took_s)}\n")


async def _drain(daemon: Conversation, wait_s: float) -> float:
    await daemon.ask(Drain(), Valves, "the drain")
    try:
        return await _until_nothing_is_left(daemon, wait_s)
    except asyncio.CancelledError:  # as Ctrl-C does
        say(_STAYS)
        raise


async def _until_nothing_is_left(daemon: Conversation, wait_s: float) -> float:
    began, reading, teller = time.monotonic(), Reading(), _Teller()
    await read_last(daemon, reading, 0)
    while left := left_words(status := await daemon.status()):
        teller.tell(left, held_up(status))
        rest_s = began + wait_s - time.monotonic()
        if rest_s <= 0:
            raise _not_drained(wait_s, left, status)
        await read_next(daemon, reading, min(rest_s, FOLLOW_S))
    return time.monotonic() - began


class _Teller:
    """Says on standard error what is left, and what holds it up, each when it changes."""

    def __init__(self) -> None:
        self._left = ""
        self._found: set[tuple[Fault, str]] = set()

    def tell(self, left: str, findings: list[Finding]) -> None:
        if left != self._left:
            sys.stderr.write(f"left: {left}\n")
        for finding in findings:
            # Its words tell ages, which change with each look.
            if (finding.fault, finding.queue) not in self._found:
                sys.stderr.write(paragraph(f"- {finding}", indent="  ") + "\n")
        self._left, self._found = left, {(finding.fault, finding.queue) for finding in findings}


def held_up(status: Status) -> list[Finding]:
    """Finds what keeps those queues from getting on that still hold something."""
    holding = {slot.queue for slot in status.slots if slot.key} | {offer.queue for offer in status.offers}
    holding |= {queue.name for queue in status.queues if queue.on_device}
    found = diagnose(status)
    return [one for one in found if one.queue in holding or (one.fault is Fault.PAUSED and not one.queue)]


def left_words(status: Status) -> str:
    """Says what is there that was not trained; empty for nothing."""
    states = [slot.state for slot in status.slots if slot.key]
    counts = {state: states.count(state) for state in ("FILLING", "READY", "LENT", "QUARANTINED")}
    counts["waiting for a slot"] = status.waiting_offers
    counts["on the device"] = sum(len(queue.on_device) for queue in status.queues)
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _not_drained(wait_s: float, left: str, status: Status) -> NotDrainedError:
    why = [str(finding) for finding in held_up(status)]
    remedy = f"{why[0] if why else 'wait longer (--wait-s)'}; {_STAYS}"
    return NotDrainedError(on_one_line(f"not all was trained within {age(wait_s)}; left: {left}"), remedy=remedy)
