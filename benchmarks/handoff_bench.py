"""The benchmark of hand-overs: from a published micro-batch to numpy views in the trainer.

This process is the orchestrator; daemon and trainer are processes of their own. One micro-batch at a time goes
over the wire, while the trainer waits for it. The first moment is taken in the daemon, right before it writes
READY into the slot's header; the last in the trainer, when a tree of views of all leaves exists. Both are readings
of the kernel's one monotonic clock. Between them lie the daemon's lend, its message, and the trainer's thread that
reads it, maps the slot and makes the views.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from forebay.daemon import Ready
from forebay.orchestrator_client import StagingClient
from forebay.wire import MIB, LocalError

from .handoff_child import Child
from .handoff_daemon import Published
from .handoff_parties import (
    COPY,
    WAIT_S,
    consumed,
    processes_of,
    stage,
    trainer_process,
    wait_until_attached,
)
from .handoff_result import HandoffBenchResult, HandoffBenchSettings, HandoffRow
from .handoff_words import Take, Taken
from .payload import micro_batch, payload_bytes

_WARM_UPS = 4  # more than there are slots: each is mapped, and its pages are warm
_SLOTS = 2
_GB = 1e9
_ENDPOINTS = ("control", "data", "trainer")


class _Size:
    """Hand-overs of micro-batches of one size."""

    def __init__(self, name: str, payload_mib: float, count: int) -> None:
        self.name = name
        self.count = count
        self.payload: Any = micro_batch(payload_mib)
        self.payload_bytes = payload_bytes(self.payload)
        self.taken: Taken

    async def hand_over(self, client: StagingClient, trainer: Child) -> None:
        """Hands over some to warm up, and then those that count."""
        _say(f"{self.count} hand-overs of {self.payload_bytes} bytes")
        await self._hand_over(client, trainer, "warm", _WARM_UPS)
        self.taken = await self._hand_over(client, trainer, "run", self.count)

    async def _hand_over(self, client: StagingClient, trainer: Child, name: str, count: int) -> Taken:
        trainer.say(Take(count, WAIT_S))
        for number in range(count):
            key = f"{self.name}-{name}-{number}"
            await stage(client, self.payload, key)
            await consumed(client, key)
        return trainer.hear(Taken, WAIT_S, f"to have taken {count} micro-batches")

    def row(self, ready_at_ns: list[int]) -> HandoffRow:
        """Returns what came out, given when each was published."""
        ready = np.array(ready_at_ns)
        views_us = (np.array(self.taken.views_at_ns) - ready) / 1000
        take_us = (np.array(self.taken.taken_at_ns) - ready) / 1000
        return HandoffRow(
            payload_bytes=self.payload_bytes,
            count=self.count,
            p50_us=float(np.percentile(views_us, 50)),
            p99_us=float(np.percentile(views_us, 99)),
            max_us=float(views_us.max()),
            take_p50_us=float(np.percentile(take_us, 50)),
            take_p99_us=float(np.percentile(take_us, 99)),
            trainer_cpu_ms=1000 * self.taken.cpu_s / self.count,
        )


def run(settings: HandoffBenchSettings) -> HandoffBenchResult:
    """Runs the whole benchmark; nothing of it is left when this returns or raises.

    Raises:
        BrokenError: A process ended badly, or the daemon refused a micro-batch.
        WaitTimeoutError: One does not start, answer or end.
    """
    sizes = [
        _Size("small", settings.small_mib, settings.small_count),
        _Size("large", settings.large_mib, settings.large_count),
    ]
    slot_bytes = max(size.payload_bytes for size in sizes) + 2 * MIB
    with _noting_daemon(slot_bytes) as (daemon, ready):
        with trainer_process(ready.trainer_endpoint, cap=1) as trainer:
            wait_until_attached(trainer)
            processes = processes_of(daemon.pid, trainer)
            asyncio.run(_hand_over_all(sizes, ready, trainer))
        daemon.stop()
        published = daemon.hear(Published, WAIT_S, "to tell what it published when")
    small, large = _rows(sizes, published.ready_at_ns)
    return HandoffBenchResult(
        small=small,
        large=large,
        p50_us=max(small.p50_us, large.p50_us),
        p99_us=max(small.p99_us, large.p99_us),
        equal=max(small.p50_us, large.p50_us) / min(small.p50_us, large.p50_us),
        trainer_cpu_s_per_gb=large.trainer_cpu_ms / 1000 / (large.payload_bytes / _GB),
        settings=settings,
        measured="from right before the daemon writes READY into the slot's header, to numpy views of all leaves"
        " in the trainer; take: to its `take` having returned",
        copy=COPY,
        processes=processes,
    )


async def _hand_over_all(sizes: list[_Size], ready: Ready, trainer: Child) -> None:
    async with StagingClient(ready.control_endpoint) as client:
        for size in sizes:
            await size.hand_over(client, trainer)


def _rows(sizes: list[_Size], ready_at_ns: list[int]) -> list[HandoffRow]:
    """Gives each size its publications: they come one at a time, so in the order in which they were asked for."""
    expected = sum(_WARM_UPS + size.count for size in sizes)
    if len(ready_at_ns) != expected:
        raise LocalError(
            "the daemon published another number than was staged", got=len(ready_at_ns), limit=expected
        )
    rows = []
    for size in sizes:
        of_size, ready_at_ns = ready_at_ns[: _WARM_UPS + size.count], ready_at_ns[_WARM_UPS + size.count :]
        rows.append(size.row(of_size[_WARM_UPS:]))
    return rows


@contextlib.contextmanager
def _noting_daemon(slot_bytes: int) -> Iterator[tuple[Child, Ready]]:
    # The name of a local daemon's folder: should this process be killed, the next local daemon removes it.
    folder = tempfile.mkdtemp(prefix=f"forebay-{os.geteuid()}-local-", dir="/dev/shm")
    settings: dict[str, Any] = {f"{name}_endpoint": f"ipc://{folder}/{name}.sock" for name in _ENDPOINTS}
    settings |= {"pool": folder, "slots": _SLOTS, "slot_initial_bytes": slot_bytes, "drain_s": 0}
    settings |= {"slot_max_bytes": 2 * slot_bytes, "log_level": "warning"}
    try:
        words = msgspec.json.encode(settings).decode()
        with Child("daemon", ["forebay.benchmarks.handoff_daemon", words]) as daemon:
            yield daemon, daemon.started(Ready)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(words: str) -> None:
    sys.stderr.write(f"bench handoff: {words}\n")
