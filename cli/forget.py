"""`forebay forget`: drops one micro-batch, and all that is known of its key."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from forebay.wire import Forget, Forgotten, MicroBatchState, Peeked, RefusedError
from forebay.wire.plain_json import json_line

from .confirm import YesOption, confirm
from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .names import InQueueOption, KeyArgument
from .why import peek_or_none
from .words import quoted

_TRAINED = (MicroBatchState.CONSUMED, MicroBatchState.LOST)


@asks_daemon(only_looks=False)
def forget(
    inspector: Inspector,
    key: KeyArgument,
    queue: InQueueOption = "train",
    trained: Annotated[bool, typer.Option("--trained", help="also a key that was trained")] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Drop a micro-batch, and all that is known of its key."""
    if not yes:
        peeked = inspector.talk(lambda daemon: _peek_if_allowed(daemon, queue, key))
        confirm(_question(queue, key, peeked, trained=trained), yes=yes)
    asked = Forget(queue=queue, key=key, trained=trained)
    done = inspector.ask(asked, Forgotten, f"that {quoted(key)} is forgotten")
    told = {"queue": queue, "key": key, "was": done.state}
    words = f"{quoted(key)} of queue {quoted(queue)} was {done.state}, and is forgotten\n"
    sys.stdout.write(json_line(told) if json else words)


async def _peek_if_allowed(daemon: Conversation, queue: str, key: str) -> Peeked | None:
    try:
        return await peek_or_none(daemon, queue, key)
    except RefusedError:  # who may operate need not be allowed to look
        return None


def _question(queue: str, key: str, peeked: Peeked | None, *, trained: bool) -> str:
    state = f" It is {peeked.state} now." if peeked is not None else ""
    drops = "what is staged of it is dropped" if peeked is None or peeked.state not in _TRAINED else ""
    again = "its key can be staged as if it were new"
    if trained:
        again += ", so that what was trained could be trained once more"
    means = ", and ".join(filter(None, (drops, again)))
    return f"Forget {quoted(key)} of queue {quoted(queue)}?{state} Then {means}."
