"""`forebay pause`: has the daemon lend nothing more."""

from __future__ import annotations

from forebay.wire import Pause, Valves

from .inspector import Inspector, asks_daemon
from .json_option import JsonOption
from .names import QueueOrAllArgument
from .valves import tell_valves


@asks_daemon(only_looks=False)
def pause(inspector: Inspector, queue: QueueOrAllArgument = None, json: JsonOption = False) -> None:
    """Lend nothing more of a queue, or of any."""
    tell_valves(inspector.ask(Pause(queue=queue or ""), Valves, "the pause"), as_json=json)
