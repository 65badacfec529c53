"""What runs of the demonstration come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from .events import TrainedStep
from .settings import Mode


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run in one mode, as `forebay demo --json` prints it.

    Attributes:
        mode: Of the trainer.
        processes: Process id by name.
        device: What computed; the compute is real.
        wire_gbit_s: The rate that the orchestrator kept to when it sent; 0 for none.
        steps: Optimizer updates.
        micro_batches: Micro-batches of all steps that were trained.
        staged: Those that the trainer had from the daemon.
        inline: Those that came with the call in which they were trained.
        fallbacks: Those that went inline though they were to be staged.
        fallback_reasons: Key and reason of each of these.
        payload_bytes: Of their leaves, together.
        losses: One list a step.
        bit_identical: Whether leaves, losses, gradients and parameters equal those of the run without Forebay.
        differences: What is not, if anything.
        compared_leaves: Arrays and static values compared by digest.
        parameters_digest: Of the parameters after the last step.
        seconds_a_step: Mean, from a step's beginning to its last micro-batch being ready.
        idle_fraction: Share of that in which the device waited for the next dispatch.
        first_fill_s: The run's first wait, from the first step's beginning to its first dispatch.
        idle_fraction_after_fill: The share without it.
        step_metrics: Of each step; see `TrainedStep.metrics`.
        daemon_private_mib: Peak of the daemon's anonymous memory while data flowed.
        daemon_private_mib_before: The same before any data.
        leaked_shm: Paths that the run made in shared memory and that outlived it.
        timeline: The picture that was drawn, if one was.
        seconds: Wall-clock time of the run.
    """

    mode: Mode
    processes: dict[str, int]
    device: str
    wire_gbit_s: float
    steps: int
    micro_batches: int
    staged: int
    inline: int
    fallbacks: int
    fallback_reasons: list[tuple[str, str]]
    payload_bytes: int
    losses: list[list[float]]
    bit_identical: bool
    differences: tuple[str, ...]
    compared_leaves: int
    parameters_digest: str
    seconds_a_step: float
    idle_fraction: float
    first_fill_s: float
    idle_fraction_after_fill: float
    step_metrics: list[dict[str, float]]
    daemon_private_mib: float
    daemon_private_mib_before: float
    leaked_shm: list[str]
    timeline: str | None = None
    seconds: float

    def mean(self, name: str) -> float:
        """Returns the mean of one of the steps' metrics."""
        return sum(metrics[name] for metrics in self.step_metrics) / len(self.step_metrics)

    @property
    def wire_over_compute(self) -> float:
        """The seconds that the throttled wire needs for all payloads, over those of the compute; 0 without one."""
        compute_s = sum(metrics["stage/compute_s"] for metrics in self.step_metrics)
        return self.payload_bytes * 8 / (self.wire_gbit_s * 1e9) / compute_s if self.wire_gbit_s else 0.0


class CompareResult(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in all modes, as `forebay demo --compare --json` prints them.

    Attributes:
        modes: One run each.
        bit_identical: Whether each is bit-identical, and all of them with each other.
        differences: What is not the same in two of them, if anything.
        leaked_shm: Of all.
        timeline: The picture that was drawn, if one was.
        seconds: Wall-clock time of all.
    """

    modes: list[DemoResult]
    bit_identical: bool
    differences: tuple[str, ...]
    leaked_shm: list[str]
    timeline: str | None = None
    seconds: float


class DemoRun(NamedTuple):
    """A run's result, and its steps with their timelines."""

    result: DemoResult
    steps: list[TrainedStep]


def idle_fraction(steps: Sequence[TrainedStep], left_out_s: float = 0.0) -> float:
    """Returns the share of the steps' time in which the device waited for the next dispatch.

    Args:
        steps: All of a run.
        left_out_s: Seconds of waiting that are not to count at all.
    """
    idle_s, step_s = (sum(step.metrics[f"stage/{name}"] for step in steps) for name in ("idle_s", "step_s"))
    return (idle_s - left_out_s) / (step_s - left_out_s) if step_s > left_out_s else 0.0


def first_fill_s(steps: Sequence[TrainedStep]) -> float:
    """Returns the seconds from the first step's beginning to its first dispatch."""
    first = next(bar for bar in steps[0].spans if bar.lane == "wait")
    return first.ended_at - first.began_at


def compared(results: Sequence[DemoResult]) -> CompareResult:
    """Compares runs that differ in nothing but their mode."""
    found = tuple(line for other in results[1:] for line in _differences(results[0], other))
    return CompareResult(
        modes=list(results),
        bit_identical=not found and all(result.bit_identical for result in results),
        differences=found,
        leaked_shm=[path for result in results for path in result.leaked_shm],
        seconds=sum(result.seconds for result in results),
    )


def _differences(one: DemoResult, other: DemoResult) -> Iterator[str]:
    # As hexadecimal text: -0.0 differs from 0.0.
    left, right = ([[loss.hex() for loss in step] for step in result.losses] for result in (one, other))
    if left != right:
        yield f"losses of {one.mode} differ from those of {other.mode}"
    if one.parameters_digest != other.parameters_digest:
        yield f"parameters of {one.mode} differ from those of {other.mode}"
