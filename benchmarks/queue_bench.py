"""The staging queue's benchmark; `forebay bench queue` runs it as a process of its own.

Run as `python -m forebay.benchmarks.queue_bench SETTINGS [TIMELINE]`; prints its result as JSON.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import jax
import msgspec
import numpy as np

from forebay.orchestrator_client.timeline import draw, import_pyplot
from forebay.trainer import JaxTransfer, StagedEngine, StageMode, StagingQueue, TrainerSettings
from forebay.trainer.host_tree import PlacedTree
from forebay.wire import MIB, ForebayError, LocalError, SettingError

from .payload import micro_batch
from .queue_result import QueueBenchResult, QueueBenchSettings
from .staged_run import RunResult, run_staged
from .stand_in import TimedEngine

COPY_OVER_COMPUTE: Final = 0.38
"""As in the real workload: 3.9 s of copy for 10.35 s of compute."""
_CALIBRATION_COPIES: Final = 5
_POP_ROUNDS: Final = 8
_POPS_A_ROUND: Final = 8
_STAGE_CALLS: Final = 300
_WAIT_S: Final = 60.0


class _WatchedTransfer(JaxTransfer):
    """Tells when the transfer of a large micro-batch has begun and when it has ended."""

    def __init__(self, large_bytes: int) -> None:
        super().__init__()
        self.began = threading.Event()
        self.ended = threading.Event()
        self._large_bytes = large_bytes

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        """See `JaxTransfer`."""
        if placed.tree.host_bytes < self._large_bytes:
            return super().issue(placed)
        self.began.set()
        issued = super().issue(placed)
        jax.block_until_ready(issued)
        self.ended.set()
        return issued


def _say(words: str) -> None:
    sys.stderr.write(f"bench queue: {words}\n")


def measure_pops(settings: QueueBenchSettings) -> list[float]:
    """Pops small entries that are on the device while a large one is transferred.

    Returns:
        Seconds of each pop that began while the transfer ran.
    """
    large = {"x": np.ones(int(settings.pop_transfer_mib * MIB), np.uint8)}
    small = {"x": np.ones(1024, np.uint8)}
    seconds = []
    for _ in range(_POP_ROUNDS):
        transfer = _WatchedTransfer(large["x"].nbytes)
        unlimited = TrainerSettings(stage_batch=StageMode.STAGE.value, max_device_batches=0)
        with StagingQueue(transfer, settings=unlimited) as queue:
            keys = [f"small-{number}" for number in range(_POPS_A_ROUND)]
            for key in keys:
                queue.stage(small, key=key)
            queue.stage(large, key="large")
            if not transfer.began.wait(_WAIT_S):
                raise LocalError("the large transfer never began")
            for key in keys:
                if transfer.ended.is_set():
                    break
                began_at = time.perf_counter()
                batch = queue.take(key)
                seconds.append(time.perf_counter() - began_at)
                batch.close()
    return seconds


def measure_stage_calls(payload: Any, settings: QueueBenchSettings) -> list[float]:
    """Stages micro-batches while the device is full; returns the seconds of each call."""
    queue = StagingQueue(
        JaxTransfer(),
        settings=TrainerSettings(stage_batch=StageMode.STAGE.value, max_device_batches=settings.cap),
    )
    seconds = []
    with TimedEngine(0) as engine, StagedEngine(engine, queue) as staged:
        for number in range(settings.cap):
            staged.stage_batch(payload, key=f"full-{number}")
        with queue.take() as batch:  # it stays in a step, so that nothing is promoted meanwhile
            for number in range(_STAGE_CALLS):
                began_at = time.perf_counter()
                staged.stage_batch(payload, key=str(number))
                seconds.append(time.perf_counter() - began_at)
            staged.reset_staged()
            batch.close()
    return seconds


def measure_copy(payload: Any) -> float:
    """Returns the median seconds of a transfer."""
    settings = TrainerSettings(stage_batch=StageMode.STAGE.value)
    seconds = []
    with StagingQueue(JaxTransfer(), settings=settings) as queue:
        for number in range(_CALIBRATION_COPIES):
            queue.stage(payload, key=str(number))
            with queue.take() as batch:
                seconds.append(batch.promote_s)
    return statistics.median(seconds)


def measure_overlap(
    payload: Any, settings: QueueBenchSettings, compute_s: float
) -> tuple[list[tuple[RunResult, RunResult]], int]:
    """Runs both modes in turn; returns the pairs, and the most sets on the device in the mode `stage`."""
    pairs = []
    _say("warming up")
    run_staged(StageMode.STAGE, payload, settings, compute_s)
    for number in range(settings.pairs):
        _say(f"pair {number + 1} of {settings.pairs}")
        pairs.append(
            (
                run_staged(StageMode.STAGE, payload, settings, compute_s),
                run_staged(StageMode.SERIALIZE, payload, settings, compute_s),
            )
        )
    never_waits = run_staged(StageMode.STAGE, payload, settings, compute_s, waits=False)
    return pairs, max(never_waits.most_live, *(staged.most_live for staged, _ in pairs))


def run(settings: QueueBenchSettings, timeline: Path | None) -> QueueBenchResult:
    """Runs the whole benchmark."""
    if timeline is not None:
        import_pyplot()
    payload = micro_batch(settings.payload_mib)
    _say(f"popping beside transfers of {settings.pop_transfer_mib:g} MiB")
    pops = measure_pops(settings)
    if not pops:
        raise SettingError(
            "every transfer was over before an entry was popped beside it",
            got=f"pop_transfer_mib {settings.pop_transfer_mib:g}",
            remedy="raise it",
        )
    stage_calls = measure_stage_calls(payload, settings)
    compute_s = measure_copy(payload) / COPY_OVER_COMPUTE
    _say(f"compute is a timed wait of {1000 * compute_s:.1f} ms for a micro-batch")
    pairs, most_live = measure_overlap(payload, settings, compute_s)
    staged, serialized = zip(*pairs, strict=True)
    if timeline is not None:
        titles = ("TUNIX_STAGE_BATCH=stage", "TUNIX_STAGE_BATCH=serialize")
        draw([(title, runs[-1].bars) for title, runs in zip(titles, (staged, serialized), strict=True)], timeline)
    efficiencies = [run.overlap_efficiency for run in staged]
    ratios = [after.wall_s / before.wall_s for before, after in pairs]
    device = jax.devices()[0]
    return QueueBenchResult(
        pop_on_device_us_p50=1e6 * statistics.median(pops),
        pop_on_device_us_max=1e6 * max(pops),
        pops=len(pops),
        stage_batch_us_p50=1e6 * statistics.median(stage_calls),
        overlap_efficiency=statistics.median(efficiencies),
        overlap_efficiency_spread=(min(efficiencies), max(efficiencies)),
        serialize_overlap_efficiency=statistics.median(run.overlap_efficiency for run in serialized),
        serialize_over_stage=statistics.median(ratios),
        serialize_over_stage_spread=(min(ratios), max(ratios)),
        max_live_device_sets=most_live,
        cap=settings.cap,
        compute="a timed wait stands in for the device's compute",
        memory="host memory that glibc keeps when it is freed"
        if "MALLOC_MMAP_MAX_" in os.environ
        else "as it comes",
        compute_ms=1000 * compute_s,
        copy_ms=1000 * statistics.median(copy_s for run in staged for copy_s in run.copies_s),
        payload_mib=settings.payload_mib,
        micro_batches=settings.micro_batches,
        pairs=settings.pairs,
        device=f"{device} ({device.device_kind})",
        timeline=None if timeline is None else str(timeline),
    )


def main() -> None:
    """Runs as a process of its own."""
    settings = msgspec.json.decode(sys.argv[1], type=QueueBenchSettings)
    timeline = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    try:
        result = run(settings, timeline)
    except ForebayError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")


if __name__ == "__main__":
    main()
