"""The benchmark of small micro-batches: how many a second go from their offer to being consumed.

This process is the orchestrator; daemon and trainer are processes of their own. Several stage calls are under way
at once, each followed by the next as soon as its micro-batch is staged; nobody waits for each one's end, as the
loop that stages ahead does not. A round begins with its first offer, and is over when the last of its
micro-batches is consumed.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

from forebay.daemon import local_daemon
from forebay.orchestrator_client import StagingClient
from forebay.wire import MIB

from .handoff_child import Child
from .handoff_cpu import CpuMeter
from .handoff_parties import (
    COPY,
    WAIT_S,
    consumed,
    processes_of,
    stage,
    trainer_process,
    wait_until_attached,
)
from .handoff_words import Take, Taken
from .payload import micro_batch, payload_bytes
from .small_result import SmallBenchResult, SmallBenchSettings, SmallRound


def run(settings: SmallBenchSettings) -> SmallBenchResult:
    """Runs the whole benchmark; nothing of it is left when this returns or raises.

    Raises:
        BrokenError: A process ended badly, or the daemon refused a micro-batch.
        WaitTimeoutError: One does not start, answer or end.
    """
    payload = micro_batch(settings.payload_kib / 1024)
    rounds, processes = _measure(settings, payload, settings.cap)
    with_cap_1, _ = _measure(settings, payload, 1)
    rates = [one.per_s for one in rounds]
    costs = {name: [1000 * one.cpu_s[name] / settings.micro_batches for one in rounds] for name in processes}
    return SmallBenchResult(
        per_s=statistics.median(rates),
        per_s_spread=(min(rates), max(rates)),
        per_s_cap_1=statistics.median(one.per_s for one in with_cap_1),
        cpu_s_per_1000={name: statistics.median(of_rounds) for name, of_rounds in costs.items()},
        cpu_s_per_1000_spread={name: (min(of_rounds), max(of_rounds)) for name, of_rounds in costs.items()},
        payload_bytes=payload_bytes(payload),
        rounds=rounds,
        settings=settings,
        measured="from a round's first offer to the last of its micro-batches being consumed",
        copy=COPY,
        processes=processes,
    )


def _measure(settings: SmallBenchSettings, payload: Any, cap: int) -> tuple[list[SmallRound], dict[str, int]]:
    with (
        local_daemon(slots=settings.slots, slot_initial_bytes=payload_bytes(payload) + MIB, drain_s=0) as daemon,
        trainer_process(daemon.trainer_endpoint, cap) as trainer,
    ):
        wait_until_attached(trainer)
        processes = processes_of(daemon.pid, trainer)
        meter = CpuMeter(processes)
        return asyncio.run(_all(settings, payload, daemon.control_endpoint, trainer, meter, cap)), processes


async def _all(
    settings: SmallBenchSettings, payload: Any, control_endpoint: str, trainer: Child, meter: CpuMeter, cap: int
) -> list[SmallRound]:
    rounds = []
    async with StagingClient(control_endpoint) as client:
        _say(f"warming up, {cap} ahead")
        await _round(settings, client, payload, trainer, "warm", meter)
        for number in range(1, settings.rounds + 1):
            _say(f"round {number} of {settings.rounds}: {settings.micro_batches} micro-batches")
            rounds.append(await _round(settings, client, payload, trainer, str(number), meter))
    return rounds


async def _round(
    settings: SmallBenchSettings,
    client: StagingClient,
    payload: Any,
    trainer: Child,
    name: str,
    meter: CpuMeter,
) -> SmallRound:
    numbers = iter(range(settings.micro_batches))

    async def stage_some() -> str | None:
        key = None
        for number in numbers:
            key = f"{name}-{number}"
            await stage(client, payload, key)
        return key

    trainer.say(Take(settings.micro_batches, WAIT_S))
    meter.lap()
    began_at = time.monotonic()
    last_keys = await asyncio.gather(*(stage_some() for _ in range(settings.in_flight)))
    # Each caller's are queued in their order, so its last one is the last of its own to be consumed.
    await asyncio.gather(*(consumed(client, key) for key in last_keys if key is not None))
    took_s = time.monotonic() - began_at
    cpu_s = meter.lap()
    trainer.hear(Taken, WAIT_S, f"to have taken {settings.micro_batches} micro-batches")
    return SmallRound(per_s=settings.micro_batches / took_s, cpu_s=cpu_s)


def _say(words: str) -> None:
    sys.stderr.write(f"bench small: {words}\n")
