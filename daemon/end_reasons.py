"""Why micro-batches end untrained, as a few words that are counted; what is told to people says more."""

from __future__ import annotations

import enum


class EndReason(enum.StrEnum):
    """Why a micro-batch was dropped or lost; what is stale is counted by `Staleness`."""

    REPLACED = "replaced"
    RESET = "reset"
    ABANDONED = "abandoned"
    SILENT = "silent"
    GIVEN_UP = "given_up"
    FORGOTTEN = "forgotten"
    DETACHED = "detached"
    DIED = "died"


DROPPED_BY = (
    EndReason.REPLACED,
    EndReason.RESET,
    EndReason.ABANDONED,
    EndReason.SILENT,
    EndReason.GIVEN_UP,
    EndReason.FORGOTTEN,
)
"""Counted as `dropped_REASON`."""

LOST_BY = (EndReason.DETACHED, EndReason.DIED)
"""Counted as `lost_REASON`."""
