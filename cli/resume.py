"""`forebay resume`: undoes `forebay pause` and `forebay drain`."""

from __future__ import annotations

from forebay.wire import ForebayError, Resume, Valves

from .inspector import Inspector, asks_daemon
from .json_option import JsonOption
from .names import QueueOrAllArgument
from .valves import tell_valves
from .words import quoted


class StillHeldError(ForebayError):
    """A queue was resumed, and is held all the same."""


@asks_daemon(only_looks=False)
def resume(inspector: Inspector, queue: QueueOrAllArgument = None, json: JsonOption = False) -> None:
    """Undo pause and drain, or the pause of one queue."""
    valves = inspector.ask(Resume(queue=queue or ""), Valves, "the resumption")
    tell_valves(valves, as_json=json)
    if queue and valves.all_paused:
        raise StillHeldError(
            f"{quoted(queue)} is still held: all queues are paused", remedy="forebay resume undoes that"
        )
