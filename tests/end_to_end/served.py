"""A trainer's worker that serves on a thread of this process, and handles that talk to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay import (
    JaxTransfer,
    LocalDaemon,
    StagedEngine,
    StagingQueue,
    TrainerHandle,
    TrainerSettings,
    TrainerWorker,
    attach,
)
from forebay.wire import TreeRegistry, WorkerStatus, default_registry

from .processes import EVENT_S

T = TypeVar("T")
RETRY_S = 0.05
SHAPE = (8, 41)
MODES = pytest.mark.parametrize("mode", ["off", "stage", "serialize"])


def payload(number: int, rows: int = SHAPE[0]) -> dict[str, Any]:
    """Makes a micro-batch that the engine knows by its number."""
    return {"x": np.full((rows, SHAPE[1]), number, np.float32), "name": f"batch {number}"}


def boom(_: Any = None) -> None:
    raise RuntimeError("boom")


@jax.jit
def total(x: jax.Array) -> jax.Array:
    return jnp.sum(x)


class Engine:
    """Adds up its micro-batches on the device.

    Args:
        inside: Called with each micro-batch's number inside of `fwd_bwd`.

    Attributes:
        trained: The numbers of the micro-batches that it got, in order.
        updates: The options of its updates.
    """

    def __init__(self, inside: Callable[[int], Any] = lambda _: None) -> None:
        self.trained: list[int] = []
        self.updates: list[dict[str, Any]] = []
        self.inside = inside

    def fwd_bwd(self, batch: Any, scale: float = 1.0) -> Any:
        number = int(np.asarray(batch["x"]).flat[0])
        self.trained.append(number)
        made = self.inside(number)
        return {"total": total(batch["x"]) * scale, "number": number} if made is None else made

    def update(self, **options: Any) -> Any:
        self.updates.append(options)
        return {"updates": len(self.updates), **options}


class DeferringEngine(Engine):
    """An engine that has a deferred update as well."""

    def __init__(self) -> None:
        super().__init__()
        self.deferred = 0

    def apply_deferred_update(self) -> int:
        self.deferred += 1
        return self.deferred


class Served:
    """A worker that serves; a context manager that ends it in order.

    Args:
        folder: For its sockets.
        engine: Its engine; default one of its own.
        mode: Of the engine.
        registry: Classes that may occur in trees.
        methods: What is registered, by name.
        concurrent: The same, for methods that run beside others.
        daemon: That feeds it; default none.
        settings: Fields of `TrainerSettings`.
    """

    def __init__(
        self,
        folder: Path,
        engine: Any = None,
        mode: str = "stage",
        *,
        registry: TreeRegistry = default_registry,
        methods: Mapping[str, Callable[..., Any]] | None = None,
        concurrent: Mapping[str, Callable[..., Any]] | None = None,
        daemon: LocalDaemon | None = None,
        **settings: Any,
    ) -> None:
        self.engine: Any = Engine() if engine is None else engine
        addresses = {
            "worker_endpoint": f"ipc://{folder}/worker.sock",
            "worker_data_endpoint": f"ipc://{folder}/worker_data.sock",
        }
        self.settings = TrainerSettings(stage_batch=mode, **{**addresses, **settings})
        if daemon is None:
            queue = StagingQueue(JaxTransfer(registry=registry), settings=self.settings)
        else:
            queue = attach(endpoint=daemon.trainer_endpoint, settings=self.settings)
        self.staged = StagedEngine(self.engine, queue)
        self.worker = TrainerWorker(self.staged, registry=registry)
        for name, function in (methods or {}).items():
            self.worker.register(name, function)
        for name, function in (concurrent or {}).items():
            self.worker.register(name, function, concurrent=True)
        self.thread = threading.Thread(target=self.worker.serve, name="serving")
        self.endpoint = self.worker.endpoint

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def stop(self) -> None:
        """Has it stop, and waits until it serves no more."""
        self.worker.stop()
        self.thread.join(EVENT_S)
        assert not self.thread.is_alive(), f"the worker did not stop within {EVENT_S} s"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.worker.close()
        self.staged.close()
        for thread in threading.enumerate():
            if thread.name.startswith("forebay-worker"):
                thread.join(EVENT_S)
                assert not thread.is_alive(), f"{thread} did not end within {EVENT_S} s"

    @property
    def memory(self) -> int:
        """Bytes that inline payloads take now, whether they have arrived or not."""
        return sum(len(memory) for memory in self.worker._payloads._memory.values())

    @property
    def counters(self) -> Mapping[str, int]:
        return self.worker._books.counters + self.worker._books.incoming.faults()


Talk = Callable[[TrainerHandle], Awaitable[T]]


def handle_to(endpoint: str, **options: Any) -> TrainerHandle:
    """Makes a handle that repeats soon, and is patient."""
    patient: dict[str, Any] = {"retry_s": RETRY_S, "silence_s": EVENT_S, "timeout_s": EVENT_S}
    return TrainerHandle(endpoint, **(patient | options))


def talk(endpoint: str, what: Talk[T], **options: Any) -> T:
    """Talks to a worker on an event loop of its own."""

    async def run() -> T:
        async with handle_to(endpoint, **options) as handle:
            return await what(handle)

    return asyncio.run(run())


def talk_to(daemon: LocalDaemon, served: Served, what: Talk[T]) -> T:
    """Talks to a worker that a daemon feeds."""
    return talk(served.endpoint, what, control_endpoint=daemon.control_endpoint)


async def see(handle: TrainerHandle, is_so: Callable[[WorkerStatus], bool], what: str) -> WorkerStatus:
    """Asks for the worker's status until something is so."""
    deadline = time.monotonic() + EVENT_S
    while time.monotonic() < deadline:
        status = await handle.status()
        if is_so(status):
            return status
    pytest.fail(f"{what}: not seen within {EVENT_S} s; the last status was {status}")


def states(status: WorkerStatus) -> list[str]:
    """Tells which calls there are, and where each is."""
    return [f"{call.method} {call.state}" for call in status.calls]


async def gather(*awaitables: Awaitable[Any]) -> list[Any]:
    """Waits for all of them; a failure is a result."""
    return list(await asyncio.gather(*awaitables, return_exceptions=True))
