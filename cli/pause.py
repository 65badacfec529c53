"""`forebay pause`: has the daemon lend nothing more."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.wire import Pause, Valves

from .inspector import Inspector, JsonOption, asks_daemon, complete_queue
from .valves import tell_valves


@asks_daemon(only_looks=False)
def pause(
    inspector: Inspector,
    queue: Annotated[str, typer.Argument(autocompletion=complete_queue)] = "",
    json: JsonOption = False,
) -> None:
    """Lend nothing more of a queue, or of any."""
    tell_valves(inspector.ask(Pause(queue=queue), Valves, "the pause"), as_json=json)
