"""A daemon that commands are tried on: running them, and what is staged there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from forebay import LocalDaemon, StagingClient

END_S = 60.0
HOSTILE = "k\x1b[31m\x9b2J\u202e\r\n"
TREE: dict[str, Any] = {
    "ids": np.arange(3000, dtype=np.int16).reshape(3, 1000),
    "mask": np.ones(7, ml_dtypes.bfloat16),
    "meta": {"name": HOSTILE},
}


def cli(
    *arguments: str, to: LocalDaemon | str = "", said: str = "", columns: int = 80
) -> subprocess.CompletedProcess[str]:
    endpoint = to if isinstance(to, str) else to.control_endpoint
    return subprocess.run(
        [sys.executable, "-m", "forebay.cli", *arguments, "--endpoint", endpoint],
        input=said,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
        env=os.environ | {"COLUMNS": str(columns)},
    )


def told(*arguments: str, to: LocalDaemon, code: int = 0) -> Any:
    done = cli(*arguments, "--json", to=to)
    assert done.returncode == code, done.stderr
    assert done.stdout.isascii()
    return json.loads(done.stdout)


def tell(daemon: LocalDaemon, what: Callable[[StagingClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with StagingClient(daemon.control_endpoint) as client:
            return await what(client)

    return asyncio.run(run())


def stage(daemon: LocalDaemon, *keys: str, queue: str = "train", **options: Any) -> None:
    async def run(client: StagingClient) -> None:
        for key in keys:
            await client.stage(TREE, key=key, queue=queue, **options)

    tell(daemon, run)


@contextlib.contextmanager
def waiting_drain(daemon: LocalDaemon, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `forebay drain --wait` beside the test, from when it has said that one micro-batch is left."""
    command = [
        sys.executable,
        "-m",
        "forebay.cli",
        "drain",
        "--wait",
        *more,
        "--endpoint",
        daemon.control_endpoint,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waits:
        try:
            assert waits.stderr is not None
            assert waits.stderr.readline() == "left: 1 READY\n"
            yield waits
        finally:
            waits.kill()
