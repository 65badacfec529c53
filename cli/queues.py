"""`forebay queues`: what each queue holds, and who trains it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from forebay.wire import QueueStatus

from .inspector import Inspector, JsonOption, asks_daemon
from .plain import json_line
from .table import table


@asks_daemon()
def queues(inspector: Inspector, json: JsonOption = False) -> None:
    """Show the queues, and the trainer of each."""
    found = inspector.status().queues
    sys.stdout.write(json_line(found) if json else queue_table(found))


def queue_table(queues: Iterable[QueueStatus]) -> str:
    """Makes the table of some queues."""
    return table(("queue", "version", "ready", "on device", "trainer", "attached s"), map(_row, queues))


def _row(queue: QueueStatus) -> tuple[object, ...]:
    trainer = queue.trainer
    return (
        queue.name,
        "" if queue.policy_version is None else queue.policy_version,
        len(queue.ready),
        ", ".join(queue.on_device),
        f"{trainer.name} {trainer.pid} on {trainer.host}" if trainer else "none",
        f"{queue.trainer_since_s:.0f}" if trainer else "",
    )
