"""Who takes part in the benchmarks of small things: a trainer process, and an orchestrator that stages."""

from __future__ import annotations

import os
from typing import Any

from forebay.orchestrator_client import Refusal, StagingClient
from forebay.wire import BrokenError

from .handoff_child import Child
from .handoff_words import Attached

WAIT_S = 60.0
"""Seconds that a single micro-batch may take, from its offer to its end."""

COPY = "left out: the staging queue takes the numpy views for the device's arrays"
"""What stands for the copy to the device."""


def trainer_process(trainer_endpoint: str, cap: int) -> Child:
    """Starts a trainer: a context manager, and attached once it has `started(Attached)`.

    Args:
        trainer_endpoint: The daemon's.
        cap: Micro-batches ahead of the one that is taken; 0 for any number.
    """
    return Child("trainer", ["forebay.benchmarks.handoff_trainer", trainer_endpoint, str(cap)])


def wait_until_attached(trainer: Child) -> None:
    """Waits for a trainer of `trainer_process` to be attached."""
    trainer.started(Attached)


async def stage(client: StagingClient, payload: Any, key: str) -> None:
    """Stages a micro-batch.

    Raises:
        BrokenError: The daemon refused it.
        WaitTimeoutError: It was not staged in time.
    """
    result = await client.stage(payload, key=key, wait_s=WAIT_S, timeout_s=WAIT_S)
    if isinstance(result, Refusal):
        raise BrokenError(f"the daemon refused {key!r} ({result.code}): {result.words}")


async def consumed(client: StagingClient, key: str) -> None:
    """Waits until a micro-batch is consumed."""
    await client.wait(key, until="consumed", timeout_s=WAIT_S)


def processes_of(daemon_pid: int, trainer: Child) -> dict[str, int]:
    """Returns name and pid of the three processes; this one is the orchestrator."""
    return {"orchestrator": os.getpid(), "daemon": daemon_pid, "trainer": trainer.pid}
