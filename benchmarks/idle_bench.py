"""The benchmark of idle processes: what orchestrator, daemon and trainer cost while nothing flows.

This process is the orchestrator, with an open client; daemon and trainer are processes of their own. One
micro-batch goes all the way first, so that every connection is there; then the trainer waits for the next one.
"""

from __future__ import annotations

import asyncio
import sys
import time

from forebay.daemon import local_daemon
from forebay.orchestrator_client import StagingClient
from forebay.wire import MIB

from .handoff_child import Child
from .handoff_cpu import CpuMeter
from .handoff_parties import (
    WAIT_S,
    consumed,
    processes_of,
    stage,
    trainer_process,
    wait_until_attached,
)
from .handoff_words import Take, Taken
from .idle_result import IdleBenchResult, IdleBenchSettings
from .payload import micro_batch

_PAYLOAD_MIB = 1 / 64


def run(settings: IdleBenchSettings) -> IdleBenchResult:
    """Runs the whole benchmark; nothing of it is left when this returns or raises.

    Raises:
        BrokenError: A process ended badly, or the daemon refused a micro-batch.
        WaitTimeoutError: One does not start, answer or end.
    """
    with (
        local_daemon(slot_initial_bytes=MIB, drain_s=0) as daemon,
        trainer_process(daemon.trainer_endpoint, cap=1) as trainer,
    ):
        wait_until_attached(trainer)
        processes = processes_of(daemon.pid, trainer)
        took_s, cpu_s = asyncio.run(_wait(settings, daemon.control_endpoint, trainer, CpuMeter(processes)))
    fractions = {name: seconds / took_s for name, seconds in cpu_s.items()}
    return IdleBenchResult(
        cpu_fraction=max(fractions.values()),
        cpu_fractions=fractions,
        idle_s=took_s,
        settings=settings,
        state="the client is open, the daemon serves, the trainer is attached and waits in `take`",
        processes=processes,
    )


async def _wait(
    settings: IdleBenchSettings, control_endpoint: str, trainer: Child, meter: CpuMeter
) -> tuple[float, dict[str, float]]:
    payload = micro_batch(_PAYLOAD_MIB)
    async with StagingClient(control_endpoint) as client:
        trainer.say(Take(2, settings.settle_s + settings.idle_s + WAIT_S))
        await stage(client, payload, "before")
        await consumed(client, "before")
        _say(f"nothing flows for {settings.settle_s:g} s, and then for {settings.idle_s:g} s that count")
        await asyncio.sleep(settings.settle_s)
        meter.lap()
        began_at = time.monotonic()
        await asyncio.sleep(settings.idle_s)
        took_s, cpu_s = time.monotonic() - began_at, meter.lap()
        # All of it still works.
        await stage(client, payload, "after")
        await consumed(client, "after")
        trainer.hear(Taken, WAIT_S, "to have taken 2 micro-batches")
    return took_s, cpu_s


def _say(words: str) -> None:
    sys.stderr.write(f"bench idle: {words}\n")
