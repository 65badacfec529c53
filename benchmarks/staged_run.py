"""One run of micro-batches through a staged engine, measured."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from typing import Any

import jax

from forebay.orchestrator_client.timeline import Bar
from forebay.trainer import JaxTransfer, StagedEngine, StageMode, StagePromote, StagingQueue, TrainerSettings
from forebay.trainer.host_tree import PlacedTree
from forebay.wire import WaitTimeoutError

from .payload import largest_leaf
from .queue_result import QueueBenchSettings
from .stand_in import TimedEngine, TimedWork

_STAGED_AHEAD = 2
_WAIT_S = 60.0


class CountingTransfer(JaxTransfer):
    """Counts the micro-batches that have arrays on the device, each time that one more has.

    Args:
        leaf_bytes: Bytes of the leaf by which one is known.
    """

    def __init__(self, leaf_bytes: int) -> None:
        super().__init__()
        self.most = 0
        self._leaf_bytes = leaf_bytes

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        """See `JaxTransfer`."""
        issued = super().issue(placed)
        live = [array for array in jax.live_arrays() if array.nbytes == self._leaf_bytes]
        # By their memory: looking at an array's shards makes more objects for the same.
        self.most = max(self.most, len({array.unsafe_buffer_pointer() for array in live}))
        return issued


class _Promotions(logging.Handler):
    """Collects the queue's own events."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[StagePromote] = []
        self.first = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if isinstance(event, StagePromote):
            self.seen.append(event)
            self.first.set()


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """One run.

    Attributes:
        wall_s: From the first `fwd_bwd` to the end of the last compute.
        compute_s: Of all computes together.
        copies_s: Of each transfer but the first.
        most_live: Most micro-batches on the device at any moment.
        bars: For the picture.
    """

    wall_s: float
    compute_s: float
    copies_s: list[float]
    most_live: int
    bars: list[Bar]

    @property
    def overlap_efficiency(self) -> float:
        """Share of the copies' time that did not make the run longer."""
        return 1 - (self.wall_s - self.compute_s) / sum(self.copies_s)


def run_staged(
    mode: StageMode, payload: Any, settings: QueueBenchSettings, compute_s: float, *, waits: bool = True
) -> RunResult:
    """Trains on micro-batches that are staged two ahead.

    Args:
        mode: Of the queue.
        payload: Used for all of them.
        settings: The benchmark's.
        compute_s: Seconds of compute for each.
        waits: Whether the trainer waits for each before the next, as it must to read a loss.
    """
    transfer = CountingTransfer(largest_leaf(payload).nbytes)
    queue = StagingQueue(
        transfer, settings=TrainerSettings(stage_batch=mode.value, max_device_batches=settings.cap)
    )
    keys = [str(number) for number in range(settings.micro_batches)]
    promotions = _Promotions()
    bars: list[Bar] = []
    works: list[TimedWork] = []
    log = logging.getLogger("forebay.trainer")
    log.setLevel(logging.INFO)
    log.addHandler(promotions)
    try:
        with TimedEngine(compute_s) as engine, StagedEngine(engine, queue) as staged:
            to_stage = iter(keys)
            bars += [_stage(staged, payload, key) for key in itertools.islice(to_stage, 1 + _STAGED_AHEAD)]
            # The first copy has nothing to hide behind.
            if not promotions.first.wait(_WAIT_S):
                raise WaitTimeoutError(f"waited {_WAIT_S:g} s for the first transfer; {queue!r}")
            for key in keys:
                began_at = time.monotonic()
                work: TimedWork = staged.fwd_bwd(stage_key=key, key=key)
                bars.append(Bar("fwd_bwd", key, began_at, time.monotonic()))
                works.append(work)
                bars += [_stage(staged, payload, ahead) for ahead in itertools.islice(to_stage, 1)]
                if waits:
                    work.block_until_ready()
            work.block_until_ready()
    finally:
        log.removeHandler(promotions)
    first_call = next(bar for bar in bars if bar.lane == "fwd_bwd")
    bars += [Bar("device", work.key, work.began_at, work.ready_at) for work in works]
    bars += [Bar("transfer", e.key, e.ended_at - e.transfer_s, e.ended_at) for e in promotions.seen]
    return RunResult(
        wall_s=works[-1].ready_at - first_call.began_at,
        compute_s=sum(work.ready_at - work.began_at for work in works),
        copies_s=[event.transfer_s for event in promotions.seen[1:]],
        most_live=transfer.most,
        bars=bars,
    )


def _stage(staged: StagedEngine, payload: Any, key: str) -> Bar:
    began_at = time.monotonic()
    staged.stage_batch(payload, key=key)
    return Bar("stage_batch", key, began_at, time.monotonic())
