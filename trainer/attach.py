"""Attaching to a queue of the daemon on this host."""

from __future__ import annotations

from typing import Any

from forebay.shm import default_endpoint
from forebay.wire import SettingError, TreeRegistry, default_registry

from .daemon_feed import DaemonFeed
from .jax_transfer import JaxTransfer
from .settings import TrainerSettings
from .staging_queue import StagingQueue


def attach(
    queue: str = "train",
    *,
    endpoint: str | None = None,
    shardings: Any = None,
    registry: TreeRegistry = default_registry,
    cast_64bit: bool = False,
    settings: TrainerSettings | None = None,
    timeout_s: float = 10.0,
) -> StagingQueue:
    """Attaches this process to a queue of the daemon on this host.

    Args:
        queue: The queue's name; one live trainer a queue.
        endpoint: The daemon's trainer endpoint; default the one of this user's daemon.
        shardings: Where leaves go; see `JaxTransfer`.
        registry: Classes that may occur in trees.
        cast_64bit: Narrow 64-bit leaves where JAX's 64-bit mode is off, instead of refusing them.
        settings: The cap and the mode, instead of the environment's; see `load_trainer_settings`.
        timeout_s: Seconds to wait for the daemon, and for a trainer that is attached to go.

    Returns:
        A staging queue that is fed by the daemon, beside what is staged in process; a context manager. From the
        first `take` on, as many micro-batches are promoted ahead as the cap allows; leaving the context while
        one waits on the device reports it lost, and the orchestrator may send it again. Fork no process from
        this one while it is
        attached: the child would keep the lock that tells that this trainer is alive.

    Raises:
        WaitTimeoutError: No daemon answered; the message names address and setting.
        RefusedError: Another live trainer is attached; the message names it.
        VersionMismatchError: The daemon speaks another version.
        HostError: The daemon's pool cannot be seen from here.
        SettingError: The environment has a wrong value, or the endpoint is not an ipc address.
    """
    address = endpoint or default_endpoint("trainer")
    if not address.startswith("ipc://"):
        raise SettingError(
            "setting trainer_endpoint", got=address, limit="an ipc:// address: trainers share the daemon's memory"
        )
    return StagingQueue(
        JaxTransfer(shardings, registry=registry, cast_64bit=cast_64bit),
        settings=settings,
        feed=DaemonFeed(address, queue, timeout_s=timeout_s),
    )
