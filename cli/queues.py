"""`forebay queues`: what each queue holds, and who trains it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from forebay.wire import QueueStatus
from forebay.wire.plain_json import json_line

from .inspector import Inspector, asks_daemon
from .json_option import JsonOption
from .table import table
from .words import age, named

_HEADER = ("queue", "lends", "version", "ready", "on device", "trainer", "attached s", "asks s")


@asks_daemon()
def queues(inspector: Inspector, json: JsonOption = False) -> None:
    """Show the queues, and the trainer of each."""
    found = inspector.status().queues
    sys.stdout.write(json_line({"queues": found}) if json else queue_table(found))


def queue_table(queues: Sequence[QueueStatus], *, columns: int | None = None) -> str:
    """Makes the table of some queues, or says that there are none; see `table`."""
    return table(_HEADER, map(_row, queues), columns=columns) if queues else "no queues\n"


def _row(queue: QueueStatus) -> tuple[object, ...]:
    trainer = queue.trainer
    return (
        *(queue.name, "paused" if queue.paused else "yes"),
        "" if queue.policy_version is None else queue.policy_version,
        *(len(queue.ready), len(queue.on_device), _somebody(queue) if trainer else _nobody(queue)),
        f"{queue.trainer_since_s:.0f}" if trainer and queue.trainer_is_back else "",
        f"{queue.asks_s:.1f}" if queue.asks_s else "",
    )


def _somebody(queue: QueueStatus) -> str:
    return named(queue.trainer) if queue.trainer_is_back else f"not back: {named(queue.trainer)}"


def _nobody(queue: QueueStatus) -> str:
    if queue.last_trainer is None:
        return "none"
    return f"gone {age(queue.gone_s)}: {named(queue.last_trainer)}"
