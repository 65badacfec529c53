"""A real daemon to stage with, its clients, and what they look for in its slots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np

from forebay.daemon import LocalDaemon, local_daemon
from forebay.orchestrator_client import StagingClient
from forebay.wire import SlotStatus, Status, TreeRegistry

PATIENCE_S = 60.0
SLOTS = 40
MIB = 1 << 20
REGISTRY = TreeRegistry()
GOOD = {"tokens": np.arange(5000, dtype=np.int32), "mask": np.ones((3, 7), bool)}


def small_chunks() -> LocalDaemon:
    return local_daemon(
        slots=SLOTS, slot_initial_bytes=64 << 10, slot_max_bytes=64 * MIB, chunk_bytes=4096, max_depth=6
    )


@asynccontextmanager
async def connected(daemon: LocalDaemon) -> AsyncIterator[StagingClient]:
    """A client; afterwards the daemon holds nothing."""
    endpoint = daemon.control_endpoint
    async with StagingClient(endpoint, registry=REGISTRY, timeout_s=PATIENCE_S, retry_s=0.5) as client:
        yield client
        await client.reset()
        await until(client, lambda status: not in_use(status), "every slot to be free")


def in_use(status: Status) -> list[SlotStatus]:
    return [slot for slot in status.slots if slot.state != "FREE"]


async def until(client: StagingClient, condition: Callable[[Status], bool], what: str) -> Status:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = await client.status()
        if condition(status):
            return status
    raise AssertionError(f"waited {PATIENCE_S} s for {what}")


def run(daemon: LocalDaemon, what: Callable[[StagingClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected(daemon) as client:
            await what(client)

    asyncio.run(main())
