"""What a run of the demonstration comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from .events import StagedBatch, TrainedBatch


class StepSummary(NamedTuple):
    """One step's figures.

    Attributes:
        losses: One a micro-batch.
        payload_bytes: Of all its micro-batches.
        stage_s: Mean seconds to stage one.
        promote_s: Mean seconds to promote one.
        compute_s: Mean seconds that the device worked on one.
        idle_fraction: Share of the step's time in which the device waited.
    """

    losses: list[float]
    payload_bytes: int
    stage_s: float
    promote_s: float
    compute_s: float
    idle_fraction: float


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as `forebay demo --json` prints it.

    Attributes:
        processes: Process id by name.
        device: What computed; the compute is real.
        steps: Optimizer updates.
        micro_batches: Micro-batches of all steps that were trained.
        payload_bytes: Of their leaves, together.
        losses: One list a step.
        bit_identical: Whether leaves, losses, gradients and parameters equal those of the run without Forebay.
        differences: What is not, if anything.
        compared_leaves: Arrays and static values compared by digest.
        idle_fraction: Device idle from the first dispatch to the last micro-batch being ready.
        daemon_private_mib: Peak of the daemon's anonymous memory while data flowed.
        daemon_private_mib_before: The same before any data.
        leaked_shm: Paths that the run made in shared memory and that outlived it.
        seconds: Wall-clock time of the run.
    """

    processes: dict[str, int]
    device: str
    steps: int
    micro_batches: int
    payload_bytes: int
    losses: list[list[float]]
    bit_identical: bool
    differences: tuple[str, ...]
    compared_leaves: int
    idle_fraction: float
    daemon_private_mib: float
    daemon_private_mib_before: float
    leaked_shm: list[str]
    seconds: float


def summarize(trained: Sequence[TrainedBatch], staged: Sequence[StagedBatch]) -> list[StepSummary]:
    """Adds up a run's events by step."""
    stage_s = {event.key: event.stage_s for event in staged}
    steps = sorted({event.step for event in trained})
    return [_summary([event for event in trained if event.step == step], stage_s) for step in steps]


def idle_fraction(trained: Sequence[TrainedBatch]) -> float:
    """Returns the share of the time in which the device waited for the next dispatch."""
    idle_s = sum(event.idle_s for event in trained)
    # From the first dispatch to the last ready, the device either worked or was idle.
    total_s = idle_s + sum(event.compute_s for event in trained)
    return idle_s / total_s if total_s else 0.0


def _summary(trained: Sequence[TrainedBatch], stage_s: dict[str, float]) -> StepSummary:
    count = len(trained)
    return StepSummary(
        losses=[event.loss for event in trained],
        payload_bytes=sum(event.host_bytes for event in trained),
        stage_s=sum(stage_s[event.key] for event in trained) / count,
        promote_s=sum(event.promote_s for event in trained) / count,
        compute_s=sum(event.compute_s for event in trained) / count,
        idle_fraction=idle_fraction(trained),
    )
