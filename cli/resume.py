"""`forebay resume`: undoes `forebay pause` and `forebay drain`."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.wire import Resume, Valves

from .inspector import Inspector, JsonOption, asks_daemon, complete_queue
from .valves import tell_valves


@asks_daemon(only_looks=False)
def resume(
    inspector: Inspector,
    queue: Annotated[str, typer.Argument(autocompletion=complete_queue)] = "",
    json: JsonOption = False,
) -> None:
    """Undo pause and drain, or the pause of one queue."""
    tell_valves(inspector.ask(Resume(queue=queue), Valves, "the resumption"), as_json=json)
