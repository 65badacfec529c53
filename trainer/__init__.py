"""The trainer's side: attaching to a queue and promoting its micro-batches to the device. Imports jax."""

from .attached_queue import AttachedQueue, attach
from .batch import Batch
from .promotions import PromotionError

__all__ = ["AttachedQueue", "Batch", "PromotionError", "attach"]
