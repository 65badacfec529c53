"""Forebay: stages micro-batches in host shared memory, so that a JAX trainer's device never waits for data.

The names below are loaded when they are first used: importing this package imports neither jax nor zmq.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .daemon import LocalDaemon, local_daemon
    from .orchestrator_client import (
        LeafReport,
        MicroBatch,
        NotBegunError,
        OrchestratorSettings,
        Pace,
        Refusal,
        RemoteCallError,
        StageAhead,
        Staged,
        StagingClient,
        SteadyPace,
        Trained,
        TrainerHandle,
        TrainStep,
        Upcoming,
        load_orchestrator_settings,
    )
    from .trainer import (
        AlreadyTrainedError,
        Batch,
        Declined,
        JaxTransfer,
        NotStagedError,
        Prepared,
        PromotionError,
        Queued,
        QueueStats,
        StagedEngine,
        StageMode,
        StagingQueue,
        TrainerSettings,
        TrainerWorker,
        attach,
        load_trainer_settings,
    )
    from .wire import (
        BrokenError,
        ClosedError,
        DataProtection,
        ForebayError,
        HeldError,
        HostError,
        LocalError,
        MicroBatchGoneError,
        MicroBatchState,
        ProtocolError,
        RefusalCode,
        RefusedError,
        RemoteError,
        SettingError,
        ShmFullError,
        StaleError,
        Status,
        TreeError,
        TreeRegistry,
        UsageError,
        VersionMismatchError,
        WaitTimeoutError,
        WorkerStatus,
        register_type,
    )

_ERRORS = (
    *("BrokenError", "ClosedError", "ForebayError", "HeldError", "HostError", "LocalError"),
    *("MicroBatchGoneError", "ProtocolError", "RefusedError", "RemoteError", "SettingError", "ShmFullError"),
    *("StaleError", "TreeError", "UsageError", "VersionMismatchError", "WaitTimeoutError"),
)
_TRAINER = (
    *("AlreadyTrainedError", "TrainerWorker"),
    *("Batch", "Declined", "JaxTransfer", "NotStagedError", "Prepared", "PromotionError", "QueueStats", "Queued"),
    *("StageMode", "StagedEngine", "StagingQueue", "TrainerSettings", "attach", "load_trainer_settings"),
)
_ORCHESTRATOR = (
    *("LeafReport", "MicroBatch", "NotBegunError", "OrchestratorSettings", "Pace", "Refusal", "RemoteCallError"),
    *("StageAhead", "Staged", "StagingClient", "SteadyPace", "TrainStep", "Trained", "TrainerHandle", "Upcoming"),
    "load_orchestrator_settings",
)
_WORDS = ("DataProtection", "MicroBatchState", "RefusalCode", "Status", "WorkerStatus")
_HOME = (
    dict.fromkeys((*_ERRORS, *_WORDS), "wire")
    | dict.fromkeys(_TRAINER, "trainer")
    | dict.fromkeys(_ORCHESTRATOR, "orchestrator_client")
    | {
        "LocalDaemon": "daemon",
        "TreeRegistry": "wire",
        "local_daemon": "daemon",
        "register_type": "wire",
    }
)

__all__ = [
    "AlreadyTrainedError",
    "Batch",
    "BrokenError",
    "ClosedError",
    "DataProtection",
    "Declined",
    "ForebayError",
    "HeldError",
    "HostError",
    "JaxTransfer",
    "LeafReport",
    "LocalDaemon",
    "LocalError",
    "MicroBatch",
    "MicroBatchGoneError",
    "MicroBatchState",
    "NotBegunError",
    "NotStagedError",
    "OrchestratorSettings",
    "Pace",
    "Prepared",
    "PromotionError",
    "ProtocolError",
    "QueueStats",
    "Queued",
    "Refusal",
    "RefusalCode",
    "RefusedError",
    "RemoteCallError",
    "RemoteError",
    "SettingError",
    "ShmFullError",
    "StageAhead",
    "StageMode",
    "Staged",
    "StagedEngine",
    "StagingClient",
    "StagingQueue",
    "StaleError",
    "Status",
    "SteadyPace",
    "TrainStep",
    "Trained",
    "TrainerHandle",
    "TrainerSettings",
    "TrainerWorker",
    "TreeError",
    "TreeRegistry",
    "Upcoming",
    "UsageError",
    "VersionMismatchError",
    "WaitTimeoutError",
    "WorkerStatus",
    "attach",
    "load_orchestrator_settings",
    "load_trainer_settings",
    "local_daemon",
    "register_type",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    try:
        home = importlib.import_module(f".{_HOME[name]}", __name__)
    except ModuleNotFoundError as error:
        if error.name == "jax":
            raise ImportError(f"forebay.{name} needs jax: pip install 'forebay[trainer]'") from error
        raise
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
