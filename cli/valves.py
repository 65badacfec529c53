"""What an operator's order leads to, in words."""

from __future__ import annotations

import sys

from forebay.wire import Valves
from forebay.wire.plain_json import json_line

from .words import listed


def tell_valves(valves: Valves, *, as_json: bool) -> None:
    """Says whether the daemon takes in and lends, in a line."""
    told = {"draining": valves.draining, "all_paused": valves.all_paused, "paused": valves.paused}
    sys.stdout.write(json_line(told) if as_json else f"{valve_words(valves)}\n")


def valve_words(valves: Valves) -> str:
    """Says the same."""
    taken = "takes nothing in" if valves.draining else "takes micro-batches in"
    if valves.all_paused:
        return f"the daemon {taken}, and lends nothing"
    if valves.paused:
        return f"the daemon {taken}, and lends nothing of {listed(valves.paused)}"
    return f"the daemon {taken}, and lends what it has"
