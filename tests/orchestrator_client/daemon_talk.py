"""A client's conversations with a daemon that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np

from forebay.orchestrator_client import StagingClient
from forebay.wire import ControlReply, ControlRequest

from .fake_daemon import PATIENCE_S

RETRY_S = 0.05
SMALL = {"x": np.arange(100, dtype=np.int32)}

Answers = Iterable[ControlReply | bytes] | None
Talk = Callable[[StagingClient], Awaitable[Any]]


def talk(endpoint: str, what: Talk, *, timeout_s: float = PATIENCE_S, retry_s: float = RETRY_S) -> Any:
    """Runs a conversation with a client."""

    async def run() -> Any:
        async with StagingClient(endpoint, timeout_s=timeout_s, retry_s=retry_s) as client:
            return await what(client)

    return asyncio.run(run())


async def nothing(_: StagingClient) -> None:
    pass


def ignore(_: ControlRequest) -> Answers:
    return None
