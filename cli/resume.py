"""`forebay resume`: undoes `forebay pause` and `forebay drain`."""

from __future__ import annotations

from forebay.wire import Resume, Valves

from .inspector import Inspector, asks_daemon
from .json_option import JsonOption
from .names import QueueOrAllArgument
from .valves import tell_valves


@asks_daemon(only_looks=False)
def resume(inspector: Inspector, queue: QueueOrAllArgument = None, json: JsonOption = False) -> None:
    """Undo pause and drain, or the pause of one queue."""
    tell_valves(inspector.ask(Resume(queue=queue or ""), Valves, "the resumption"), as_json=json)
