"""What an orchestrator asks of a daemon, one question after another, and the micro-batches that it stages."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np

import forebay
from forebay.wire import Status

from .processes import EVENT_S

T = TypeVar("T")
ROWS, FEATURES = 61, 17


def batch(key: str, name: str = "", *, rows: int = ROWS) -> dict[str, Any]:
    """Makes the micro-batch of a key, or what another name's would hold; more rows make it another kind."""
    name = name or key
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return {
        "x": rng.normal(size=(rows, FEATURES)).astype(np.float32),
        "y": rng.normal(size=(rows,)).astype(np.float32),
        "name": np.frombuffer(name.encode(), np.uint8),
    }


def name_in(tree: dict[str, Any]) -> str:
    """Returns by whose bytes a step was given its micro-batch."""
    return np.asarray(tree["name"]).tobytes().decode()


def with_client(daemon: forebay.LocalDaemon, ask: Callable[[forebay.StagingClient], Awaitable[T]]) -> T:
    async def with_it() -> T:
        async with forebay.StagingClient(daemon.control_endpoint, retry_s=0.2) as client:
            return await ask(client)

    return asyncio.run(with_it())


def offer(daemon: forebay.LocalDaemon, key: str, *, wait_s: float = EVENT_S) -> forebay.Staged | forebay.Refusal:
    return with_client(daemon, lambda client: client.stage(batch(key), key=key, wait_s=wait_s))


def stage(daemon: forebay.LocalDaemon, *keys: str) -> None:
    async def one_by_one(client: forebay.StagingClient) -> None:
        for key in keys:
            result = await client.stage(batch(key), key=key, wait_s=EVENT_S)
            assert isinstance(result, forebay.Staged), result

    with_client(daemon, one_by_one)


def wait(daemon: forebay.LocalDaemon, key: str, until: Any = "consumed") -> str:
    return with_client(daemon, lambda client: client.wait(key, until=until, timeout_s=EVENT_S))


def status(daemon: forebay.LocalDaemon) -> Status:
    return with_client(daemon, lambda client: client.status())


def slots(daemon: forebay.LocalDaemon) -> dict[str, str]:
    """Returns what is in the slots that are not free, as the daemon sees it now: key -> state."""
    return {slot.key: slot.state for slot in status(daemon).slots if slot.state != "FREE"}


def keys(count: int, first: int = 0) -> list[str]:
    return [f"k{index}" for index in range(first, first + count)]
