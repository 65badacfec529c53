"""The trainer process: trains on what the daemon lends, then again without Forebay, and compares bit for bit.

Run as `python -m forebay.demo.trainer TRAINER_ENDPOINT SETTINGS`.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import jax

from forebay.trainer import Batch, StagingQueue, attach
from forebay.wire import ProtocolError

from .batches import micro_batches
from .child import run_child
from .digests import leaf_digests
from .events import Compared, Compiled, ReplayedBatch, TrainedBatch, TrainerDevice, emit
from .loss import rows_of
from .micro_batch import TrainExample
from .model import init_params
from .settings import QUEUE, WAIT_S, DemoSettings
from .training import TrainingRun, compile_step, differences


class StagedTraining:
    """Trains a run on a queue's micro-batches and reports each of them.

    Args:
        run: The run, at its start.
        settings: The demonstration's.
    """

    def __init__(self, run: TrainingRun, settings: DemoSettings) -> None:
        self._run = run
        self._settings = settings
        self._ready_at: float | None = None

    def train(self, queue: StagingQueue) -> None:
        """Takes and trains all micro-batches of the demonstration."""
        with ThreadPoolExecutor(1) as helper:
            for number in range(self._settings.total):
                with queue.take(timeout_s=WAIT_S) as batch:
                    event = self._train_one(batch, number // self._settings.micro_batches, helper)
                emit(event)

    def _train_one(self, batch: Batch, step: int, helper: ThreadPoolExecutor) -> TrainedBatch:
        if not isinstance(batch.tree, TrainExample):
            raise ProtocolError(f"{batch.key} is no TrainExample", got=type(batch.tree).__name__)
        rows = rows_of(batch.tree)
        if self._ready_at is None:
            emit(Compiled(seconds=compile_step(self._run.params, rows)))
        dispatched_at = time.monotonic()
        self._run.dispatch(batch.key, rows)
        batch.dispatched(self._run.record.losses[-1])
        # Beside the device's work: only what takes longer than that delays the next dispatch, as idle time.
        digests = helper.submit(leaf_digests, batch.tree)
        loss = self._run.wait()
        idle_s = 0.0 if self._ready_at is None else dispatched_at - self._ready_at
        self._ready_at = time.monotonic()
        self._run.record.digests.append(digests.result())
        return TrainedBatch(
            key=batch.key,
            step=step,
            loss=loss,
            host_bytes=batch.host_bytes,
            promote_s=batch.promote_s,
            idle_s=idle_s,
            compute_s=self._ready_at - dispatched_at,
        )


def train_in_process(run: TrainingRun, settings: DemoSettings) -> None:
    """Trains a run on the same micro-batches, made here and never sent anywhere."""
    for key, example in micro_batches(settings):
        run.record.digests.append(leaf_digests(example))
        run.dispatch(key, jax.device_put(rows_of(example)))
        run.wait()
        emit(ReplayedBatch(key=key))


def main(endpoint: str, settings: DemoSettings) -> None:
    """Runs the trainer to its end."""
    device = jax.devices()[0]
    emit(TrainerDevice(name=str(device), kind=device.device_kind))
    params = init_params(settings.seed)
    staged, in_process = (TrainingRun(params, settings.micro_batches) for _ in range(2))
    with attach(QUEUE, endpoint=endpoint) as queue:
        StagedTraining(staged, settings).train(queue)
    train_in_process(in_process, settings)
    leaves = sum(len(digests) for digests in staged.record.digests)
    emit(Compared(leaves=leaves, differences=differences(staged, in_process)))


if __name__ == "__main__":
    run_child(main)
