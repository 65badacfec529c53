"""Loops of real processes: a worker that tells what it trained, and an orchestrator that stages ahead of it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from forebay import LocalDaemon, MicroBatch, OrchestratorSettings, StageAhead, TrainerHandle

from .processes import EVENT_S

SCRIPT = Path(__file__).with_name("ahead_worker.py")
IDS = 1_500_000


class Worker:
    """The trainer's process."""

    def __init__(self, daemon: LocalDaemon, folder: Path, mode: str = "stage") -> None:
        folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), daemon.trainer_endpoint, str(folder), mode],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.endpoint: str = json.loads(self.process.stdout.readline())["endpoint"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Ends it in order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(EVENT_S) == 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def payload(name: str, ids: int = IDS) -> dict[str, Any]:
    """Makes a micro-batch whose bytes depend on its name."""
    rng = np.random.default_rng(xxhash.xxh3_64_intdigest(name.encode()))
    return {"ids": rng.integers(-1, 512, (ids,), np.int16), "name": name}


def digest(name: str, ids: int = IDS) -> str:
    """Returns what the worker should have for a name."""
    return xxhash.xxh3_64_hexdigest(payload(name, ids)["ids"].tobytes())


def names(steps: int, each: int, prefix: str = "") -> list[str]:
    """Returns the names of a run's micro-batches in order."""
    return [f"{prefix}{step}/{index}" for step in range(steps) for index in range(each)]


async def source(
    steps: int, each: int, prefix: str = "", *, before: Callable[[str], Awaitable[None]] | None = None
) -> AsyncIterator[MicroBatch]:
    """Yields a run's micro-batches; `before` is awaited before each."""
    for name in names(steps, each, prefix):
        if before is not None:
            await before(name)
        yield MicroBatch(payload(name), key=name, ends_step=name.endswith(f"/{each - 1}"))


async def trained_by(trainer: TrainerHandle) -> list[tuple[str, str]]:
    """Returns name and digest of all that the worker trained, in order."""
    told: list[tuple[str, str]] = [tuple(one) for one in json.loads(await trainer.call("trained"))]
    return told


def expected(steps: int, each: int, prefix: str = "") -> list[tuple[str, str]]:
    """Returns what the worker must tell of an undisturbed run."""
    return [(name, digest(name)) for name in names(steps, each, prefix)]


async def run(trainer: TrainerHandle, batches: AsyncIterator[MicroBatch], **options: Any) -> list[tuple[str, str]]:
    """Trains a source to its end; returns key and source of each micro-batch, in order."""
    settings = options.pop("settings", OrchestratorSettings())
    results = []
    async with StageAhead(trainer, batches, settings, **options) as ahead:
        async for step in ahead:
            results += [(trained.key, trained.source) async for trained in step]
            await trainer.update()
    return results


def handle(worker: Worker, daemon: LocalDaemon, **options: Any) -> TrainerHandle:
    """Returns a handle that repeats quickly."""
    return TrainerHandle(
        worker.endpoint, control_endpoint=daemon.control_endpoint, **{"retry_s": 0.2, "silence_s": 30.0, **options}
    )


def go(
    work: Callable[[TrainerHandle], Awaitable[None]], worker: Worker, daemon: LocalDaemon, **options: Any
) -> None:
    """Runs a test's own coroutine with a handle; a hang ends as a failure."""

    async def limited() -> None:
        async with asyncio.timeout(2 * EVENT_S), handle(worker, daemon, **options) as trainer:
            await work(trainer)

    asyncio.run(limited())
