"""`forebay why`: the story of one micro-batch, and what it waits for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import typer

from forebay.wire import ExitCode, Moment, Peek, Peeked, RefusalCode, RefusedError
from forebay.wire.plain_json import json_line

from .events import as_object, moment_words
from .history import Clock, Reading, read_all
from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .names import InQueueOption, KeyArgument
from .stories import Case, Seen, judge
from .words import age, paragraph, quoted

_UNKNOWN = (Case.NEVER_OFFERED, Case.OTHER_QUEUE)


@asks_daemon()
def why(inspector: Inspector, key: KeyArgument, queue: InQueueOption = "train", json: JsonOption = False) -> None:
    """Tell one micro-batch's story, and what it waits for."""
    seen, clock = inspector.talk(lambda daemon: look(daemon, queue, key))
    sys.stdout.write(json_line(_object(seen, clock)) if json else "".join(_lines(seen, clock)))
    if judge(seen).case in _UNKNOWN:
        raise typer.Exit(ExitCode.UNKNOWN)


async def look(daemon: Conversation, queue: str, key: str) -> tuple[Seen, Clock]:
    """Asks for all that is known of a micro-batch; what tells the times of its moments as well."""
    peeked = await peek_or_none(daemon, queue, key)
    moments, clock = await read_all(daemon, Reading(key=key))
    return Seen(queue, key, peeked, moments, await daemon.status(), clock.now_s), clock


async def peek_or_none(daemon: Conversation, queue: str, key: str) -> Peeked | None:
    """Asks what is known of a micro-batch; None if nothing is."""
    try:
        return await daemon.ask(Peek(queue=queue, key=key), Peeked, f"what is known of {quoted(key)}")
    except RefusedError as error:
        if error.code != RefusalCode.UNKNOWN_KEY:
            raise
        return None


def _lines(seen: Seen, clock: Clock) -> Iterator[str]:
    yield f"{quoted(seen.key)} in queue {quoted(seen.queue)}\n"
    before: Moment | None = None
    for moment in seen.moments:
        after = "" if before is None else f"+{age(moment.at_s - before.at_s)}"
        words = moment_words(moment, start=25, of_queue=seen.queue)
        yield f"  {clock.spell(moment.at_s)}  {after:>7}  {words}\n"
        before = moment
    yield "\n" * bool(seen.moments) + paragraph(str(judge(seen))) + "\n"


def _object(seen: Seen, clock: Clock) -> dict[str, Any]:
    judgement = judge(seen)
    return {
        "queue": seen.queue,
        "key": seen.key,
        "case": judgement.case,
        "words": judgement.words,
        "remedy": judgement.remedy,
        "peeked": without_manifest(seen.peeked),
        "moments": [as_object(moment, clock) for moment in seen.moments],
    }


def without_manifest(peeked: Peeked | None) -> dict[str, Any] | None:
    """Returns what is known of a micro-batch by name, but for its manifest, which is for programs of ours."""
    if peeked is None:
        return None
    left_out = ("type", "id", "manifest")
    told = msgspec.to_builtins(peeked)
    return {name: value for name, value in told.items() if name not in left_out}
