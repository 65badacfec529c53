"""Where a step's time went: of each micro-batch, and of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Self

from .timeline import Bar
from .trained import Trained

Interval = tuple[float, float]
"""Beginning and end, in seconds of the loop's clock."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchTimes:
    """Where the time of a trained micro-batch went; the worker's times are placed in the loop's clock.

    Clocks of two hosts cannot be compared, so the answer's arrival tells when the device worked: the worker's time
    lies between the call, or the end of its sending, and the answer; the rest is split evenly before and after.

    Attributes:
        key: Its key.
        source: Where the worker had the bytes from, as in `Trained`.
        pull: When the source was asked and when it yielded.
        stage: When its staging began and ended, also if that failed; None if it was not tried.
        free_at: When the device could have taken it: the one before was done, or the step began.
        called_at: When the call was made in which it was trained.
        sent_at: When the call was with the worker, as far as is known: when an inline payload's bytes were sent,
            else when the call was made.
        answered_at: When that call returned.
        worker_wait_s: As `Trained.wait_s`.
        dispatch_s: As in `Trained`.
        ready_s: As in `Trained`.
        idle_s: As in `Trained`.
    """

    key: str
    source: str
    pull: Interval
    stage: Interval | None
    free_at: float
    called_at: float
    sent_at: float
    answered_at: float
    worker_wait_s: float
    dispatch_s: float
    ready_s: float
    idle_s: float

    @property
    def wait_s(self) -> float:
        """Seconds for which the device could have taken it: until it was with the worker, and then there."""
        return self.sent_at - self.free_at + self.worker_wait_s

    @property
    def ready_at(self) -> float:
        """When the device was done."""
        rest_s = self.answered_at - self.sent_at - self.worker_wait_s - self.ready_s
        return self.answered_at - max(0.0, rest_s) / 2

    @property
    def dispatched_at(self) -> float:
        """When its dispatch began."""
        return max(self.called_at, self.ready_at - self.ready_s)

    def bars(self) -> Iterator[Bar]:
        """Yields its bars of the timeline: `pull`, `stage`, `wait`, `dispatch` and `device`."""
        yield Bar("pull", self.key, *self.pull)
        if self.stage is not None:
            yield Bar("stage", self.key, *self.stage)
        yield Bar("wait", self.key, self.free_at, self.dispatched_at)
        yield Bar("dispatch", self.key, self.dispatched_at, self.dispatched_at + self.dispatch_s)
        yield Bar("device", self.key, self.dispatched_at, self.ready_at)


class StepReport:
    """What is known of one step; it grows while the step's micro-batches are pulled and trained.

    Args:
        number: The step's number, from 0.

    Attributes:
        pulled: Micro-batches of the step that the source has yielded.
        held_back: Micro-batches that the caller's predicate kept from being staged before the step.
        adopted: Micro-batches that were staged, or being staged, when the step began.
        began_at: When the step began.
        free_at: When the device could have taken the step's next micro-batch.
        micro_batches: Times of those that are trained, in order.
        fallbacks: Key and reason of those that went inline though they were to be staged.
        stale: Key and reason of those that were not trained because they were stale.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.pulled = 0
        self.held_back = 0
        self.adopted = 0
        self.began_at = 0.0
        self.free_at = 0.0
        self.micro_batches: list[MicroBatchTimes] = []
        self.fallbacks: list[tuple[str, str]] = []
        self.stale: list[tuple[str, str]] = []

    def __repr__(self) -> str:
        return f"StepReport({self.number}, {len(self.micro_batches)} of {self.pulled} pulled ones trained)"

    def begin(self, now: float, *, adopted: int) -> None:
        """Notes that the step begins."""
        self.began_at = self.free_at = now
        self.adopted = adopted

    def add(self, times: MicroBatchTimes) -> None:
        """Notes that the next micro-batch is trained."""
        self.micro_batches.append(times)
        self.free_at = times.answered_at

    def metrics(self) -> dict[str, float]:
        """Returns counts, and seconds where the name ends in `_s`, of the micro-batches that are trained."""
        done = self.micro_batches
        step_s = done[-1].ready_at - self.began_at if done else 0.0
        # What the worker calls idle before a step's first is the update as well; only the loop knows the boundary.
        idle_s = done[0].dispatched_at - self.began_at + sum(each.idle_s for each in done[1:]) if done else 0.0
        values = {
            "micro_batches": len(done),
            "staged": sum(each.source == "staged" for each in done),
            "inline": sum(each.source == "inline" for each in done),
            "fallbacks": len(self.fallbacks),
            "stale": len(self.stale),
            "held_back": self.held_back,
            "adopted": self.adopted,
            "pull_s": sum(_length_s(each.pull) for each in done),
            "stage_s": sum(_length_s(each.stage) for each in done if each.stage is not None),
            "wait_s": sum(each.wait_s for each in done),
            "dispatch_s": sum(each.dispatch_s for each in done),
            "compute_s": sum(each.ready_s for each in done),
            "idle_s": idle_s,
            "idle_fraction": idle_s / step_s if step_s > 0 else 0.0,
            "step_s": step_s,
        }
        return {f"stage/{name}": float(value) for name, value in values.items()}

    def bars(self) -> tuple[Bar, ...]:
        """Returns the timeline of the micro-batches that are trained."""
        return tuple(bar for each in self.micro_batches for bar in each.bars())


class TrainStep:
    """One step, made by `StageAhead`: an async iterator of its trained micro-batches, in the source's order.

    Attributes:
        number: Which step of the loop, from 0.
    """

    def __init__(self, report: StepReport, next_result: Callable[[StepReport], Awaitable[Trained]]) -> None:
        self.number = report.number
        self._report = report
        self._next_result = next_result

    def __repr__(self) -> str:
        return f"TrainStep({self.number}, {len(self._report.micro_batches)} trained)"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Trained:
        return await self._next_result(self._report)

    def metrics(self) -> dict[str, float]:
        """Returns counts and seconds by name, of what is trained so far."""
        return self._report.metrics()

    @property
    def micro_batches(self) -> tuple[MicroBatchTimes, ...]:
        """The times of each micro-batch that is trained, in order; empty at the end if all were stale."""
        return tuple(self._report.micro_batches)

    @property
    def fallbacks(self) -> tuple[tuple[str, str], ...]:
        """Key and reason of each micro-batch that went inline though it was to be staged."""
        return tuple(self._report.fallbacks)

    @property
    def stale(self) -> tuple[tuple[str, str], ...]:
        """Key and reason of each micro-batch that was not trained because it was stale."""
        return tuple(self._report.stale)

    @property
    def spans(self) -> tuple[Bar, ...]:
        """The timeline of what is trained so far."""
        return self._report.bars()


def _length_s(interval: Interval) -> float:
    return interval[1] - interval[0]
