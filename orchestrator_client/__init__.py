"""The orchestrator's side: staging micro-batches with a host's daemon."""

from .client import StagingClient
from .results import Refusal, Staged

__all__ = ["Refusal", "Staged", "StagingClient"]
