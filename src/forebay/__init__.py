"""Forebay: stages micro-batches in host shared memory, so that a JAX trainer's device never waits for data.

The names below are loaded when they are first used: importing this package imports neither jax nor zmq.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .daemon import LocalDaemon, local_daemon
    from .orchestrator_client import Refusal, Staged, StagingClient
    from .trainer import AttachedQueue, Batch, attach
    from .wire import ForebayError, TreeRegistry, register_type

_HOME = {
    "AttachedQueue": "trainer",
    "Batch": "trainer",
    "ForebayError": "wire",
    "LocalDaemon": "daemon",
    "Refusal": "orchestrator_client",
    "Staged": "orchestrator_client",
    "StagingClient": "orchestrator_client",
    "TreeRegistry": "wire",
    "attach": "trainer",
    "local_daemon": "daemon",
    "register_type": "wire",
}

__all__ = [
    "AttachedQueue",
    "Batch",
    "ForebayError",
    "LocalDaemon",
    "Refusal",
    "Staged",
    "StagingClient",
    "TreeRegistry",
    "attach",
    "local_daemon",
    "register_type",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
