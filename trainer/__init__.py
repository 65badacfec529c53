"""The trainer's side: staging micro-batches and promoting them to the device. Imports jax."""

from .attach import attach
from .batch import Batch
from .engine import Declined, Engine, Prepared, StagedEngine
from .entry import PromotionError
from .events import StageDemote, StageFail, StagePromote, StepDone
from .feed import NotStagedError
from .jax_transfer import JaxTransfer
from .settings import StageMode, TrainerSettings, load_trainer_settings
from .staging_queue import Queued, StagingQueue
from .statistics import QueueStats
from .trained_keys import AlreadyTrainedError
from .worker import TrainerWorker

__all__ = [
    "AlreadyTrainedError",
    "Batch",
    "Declined",
    "Engine",
    "JaxTransfer",
    "NotStagedError",
    "Prepared",
    "PromotionError",
    "QueueStats",
    "Queued",
    "StageDemote",
    "StageFail",
    "StageMode",
    "StagePromote",
    "StagedEngine",
    "StagingQueue",
    "StepDone",
    "TrainerSettings",
    "TrainerWorker",
    "attach",
    "load_trainer_settings",
]
