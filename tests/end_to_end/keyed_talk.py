"""Clients with keys, and what they say to a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forebay import LocalDaemon, StagingClient
from forebay.wire import Status

from ..sockets.key_files import KeyFiles
from .processes import EVENT_S

T = TypeVar("T")
TCP: dict[str, Any] = dict.fromkeys(("control_endpoint", "data_endpoint"), "tcp://127.0.0.1:*")


def some_keys(folder: Path) -> KeyFiles:
    """Makes keys of two who may stage, one who may look, and one whom nobody knows."""
    files = KeyFiles(folder, "alice", "bob", "eve", "inspector")
    files.authorise(
        files.entry("alice", "stage"),
        files.entry("bob", "stage", queues=["bobs"]),
        files.entry("inspector", "inspect"),
    )
    return files


def tree(number: int = 0, count: int = 1_000_000) -> dict[str, Any]:
    return {"x": np.arange(number, number + count)}


def talk(daemon: LocalDaemon, what: Callable[[StagingClient], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        async with StagingClient(daemon.control_endpoint, **({"timeout_s": EVENT_S} | options)) as client:
            return await what(client)

    return asyncio.run(run())


def stage(key: str, queue: str = "train", *, wait_s: float = 0.0) -> Callable[[StagingClient], Awaitable[Any]]:
    return lambda client: client.stage(tree(), key=key, queue=queue, wait_s=wait_s)


def status_of(daemon: LocalDaemon, files: KeyFiles) -> Status:
    return talk(daemon, lambda client: client.status(), **files.client("inspector"))
