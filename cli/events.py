"""`forebay events`: what has happened, and what happens."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import typer

from forebay.wire import BrokenError, Moment, on_one_line, printable
from forebay.wire.plain_json import json_line

from .history import FOLLOW_S, Clock, Reading, read_last, read_next
from .inspector import Conversation, Inspector, asks_daemon
from .names import OnlyKeyOption, OnlyQueueOption
from .words import paragraph


@asks_daemon()
def events(
    inspector: Inspector,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on with what happens, until Ctrl-C")] = False,
    queue: OnlyQueueOption = None,
    key: OnlyKeyOption = None,
    last: Annotated[int, typer.Option(help="moments of the past to begin with", min=0)] = 100,
    json: Annotated[bool, typer.Option("--json", help="print JSON, one line a moment")] = False,
) -> None:
    """Show what has happened, and go on with what happens."""
    reading, writer = Reading(queue=queue or "", key=key or ""), _Writer(json)

    async def tell(daemon: Conversation) -> None:
        writer.write(*await read_last(daemon, reading, last))
        if last and not follow:
            writer.say_if_nothing_was_told()
        while follow:
            await _follow(daemon, reading, writer)

    inspector.talk(tell)


async def _follow(daemon: Conversation, reading: Reading, writer: _Writer) -> None:
    try:
        writer.write(*await read_next(daemon, reading, FOLLOW_S))
    except BrokenError as error:
        # It may come back, and what it tells then says whether it is the same.
        writer.warn(f"{error.what}; asking on")


class _Writer:
    """Writes moments, at times that do not jitter with each answer, and each warning once."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._clock: Clock | None = None
        self._warning = ""
        self._has_told = False

    def write(self, moments: Iterable[Moment], clock: Clock) -> None:
        if self._clock is None or not self._clock.agrees(clock):
            self._clock = clock
        self._warning = ""
        for moment in moments:
            self._has_told = True
            sys.stdout.write(json_line(as_object(moment, clock)) if self._as_json else self._line(moment))
        sys.stdout.flush()

    def say_if_nothing_was_told(self) -> None:
        """Says so, but for a program, to which no line says the same."""
        if not self._as_json and not self._has_told:
            sys.stdout.write("nothing of that is remembered\n")

    def _line(self, moment: Moment) -> str:
        assert self._clock is not None
        return f"{self._clock.spell(moment.at_s)}  {moment_words(moment, start=14)}\n"

    def warn(self, words: str) -> None:
        if not self._warning:
            sys.stderr.write(f"forebay: {on_one_line(words)}\n")
        self._warning = words


def as_object(moment: Moment, clock: Clock) -> dict[str, Any]:
    """Returns a moment's fields by name, which are an array on the wire, and its local time."""
    fields = zip(moment.__struct_fields__, msgspec.structs.astuple(moment), strict=True)
    return {"at": clock.spell_whole(moment.at_s), **dict(fields)}


def moment_words(moment: Moment, *, start: int, of_queue: str | None = None) -> str:
    """Tells a moment, in lines that fit.

    Args:
        moment: What happened.
        start: Column in which it is told.
        of_queue: Queue of a micro-batch that is known to be meant; None if any may be.
    """
    told = [f"{printable(moment.event):<11}"]
    if of_queue is None and moment.queue:
        told.append(f"{printable(moment.queue)} {printable(moment.key)}".rstrip())
    elif moment.queue not in ("", of_queue):
        told.append(f"in {printable(moment.queue)}")
    if moment.slot >= 0:
        told.append(f"slot {moment.slot}.{moment.generation}")
    told += filter(None, (moment.who, moment.words))
    return paragraph("  ".join(told), indent=" " * (start + 13), start=start)
