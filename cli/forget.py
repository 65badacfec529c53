"""`forebay forget`: drops one micro-batch, and all that is known of its key."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from forebay.wire import (
    Forget,
    Forgotten,
    MicroBatchState,
    Peeked,
    RefusalCode,
    RefusedError,
    UnknownNameError,
    printable,
)
from forebay.wire.plain_json import json_line

from .confirm import YesOption, confirm
from .inspector import Conversation, Inspector, asks_daemon
from .json_option import JsonOption
from .names import InQueueOption, KeyArgument
from .why import peek_or_none
from .words import quoted


class NotForgottenError(RefusedError):
    """The daemon keeps a micro-batch that it was to forget.

    Args:
        key: Its key.
        code: The refusal code.
        words: The daemon's explanation.
    """

    def __init__(self, key: str, code: str, words: str) -> None:
        super().__init__(code, words)
        self.key = key

    def __str__(self) -> str:
        return f"{quoted(self.key)} was not forgotten ({self.code}): {printable(self.words)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.code, self.words)


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
    done = inspector.talk(lambda daemon: _forget(daemon, Forget(queue=queue, key=key, trained=trained)))
    told = {"queue": queue, "key": key, "was": done.state}
    words = f"{quoted(key)} of queue {quoted(queue)} was {done.state}, and is forgotten\n"
    sys.stdout.write(json_line(told) if json else words)


async def _forget(daemon: Conversation, asked: Forget) -> Forgotten:
    what = f"that {quoted(asked.key)} is forgotten"
    try:
        return await daemon.ask(asked, Forgotten, what)
    except RefusedError as error:
        if error.code == RefusalCode.UNKNOWN_KEY:
            words = f"queue {quoted(asked.queue)} knows no micro-batch {quoted(asked.key)}"
            raise UnknownNameError(f"nothing to forget: {words}") from error
        said = error.words.removeprefix(f"{printable(what)}: ")
        raise NotForgottenError(asked.key, error.code, said) from error


async def _peek_if_allowed(daemon: Conversation, queue: str, key: str) -> Peeked | None:
    try:
        return await peek_or_none(daemon, queue, key)
    except RefusedError:  # who may operate need not be allowed to look
        return None


def _question(queue: str, key: str, peeked: Peeked | None, *, trained: bool) -> str:
    state = f" It is {peeked.state} now." if peeked is not None else ""
    if peeked is not None and peeked.state in _TRAINED and not trained:
        return f"Forget {quoted(key)} of queue {quoted(queue)}?{state} The daemon refuses that without --trained."
    drops = "what is staged of it is dropped" if peeked is None or peeked.state not in _TRAINED else ""
    again = "its key can be staged as if it were new"
    if trained:
        again += ", so that what was trained could be trained once more"
    means = ", and ".join(filter(None, (drops, again)))
    return f"Forget {quoted(key)} of queue {quoted(queue)}?{state} Then {means}."
