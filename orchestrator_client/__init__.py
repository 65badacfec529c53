"""The orchestrator's side: staging micro-batches with daemons, and having trainers work on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names

if TYPE_CHECKING:
    from .client import StagingClient
    from .pace import Pace, SteadyPace
    from .payload import LeafReport
    from .remote_errors import NotBegunError, RemoteCallError
    from .results import Refusal, Staged
    from .settings import OrchestratorSettings, load_orchestrator_settings
    from .source import MicroBatch, Upcoming
    from .stage_ahead import StageAhead
    from .step_report import TrainStep
    from .timeline import Bar, draw
    from .trained import Trained, Trainer
    from .trainer_handle import TrainerHandle
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Bar",
    "LeafReport",
    "MicroBatch",
    "NotBegunError",
    "OrchestratorSettings",
    "Pace",
    "Refusal",
    "RemoteCallError",
    "StageAhead",
    "Staged",
    "StagingClient",
    "SteadyPace",
    "TrainStep",
    "Trained",
    "Trainer",
    "TrainerHandle",
    "Upcoming",
    "draw",
    "load_orchestrator_settings",
]
