"""The trainer process: serves its engine, then trains without Forebay and compares the two bit for bit.

Run as `python -m forebay.demo.trainer SETTINGS ENDPOINTS`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax

from forebay.trainer import StagedEngine, TrainerSettings, TrainerWorker, attach

from .batches import micro_batches
from .child import run_child
from .digests import tree_digest
from .endpoints import Endpoints
from .events import Compared, Compiled, ReplayedBatch, TrainerDevice, emit
from .loss import rows_of
from .model import Params, init_params
from .settings import FINISH, QUEUE, DemoSettings
from .training import TrainingRun, compile_step, differences


def compile_ahead(params: Params, settings: DemoSettings) -> float:
    """Compiles for the run's shapes, on its first micro-batch; returns the seconds of the compiler alone."""
    _, example = next(micro_batches(settings))
    return compile_step(params, rows_of(example))


def serve(run: TrainingRun, endpoints: Endpoints, settings: DemoSettings) -> None:
    """Has the orchestrator train a run, until it says that there is no more."""
    own = TrainerSettings(
        stage_batch=settings.mode.value,
        worker_endpoint=endpoints.worker,
        worker_data_endpoint=endpoints.worker_data,
    )
    queue = attach(QUEUE, endpoint=endpoints.trainer, settings=own)
    with queue, StagedEngine(run, queue) as engine, TrainerWorker(engine) as worker:
        worker.register(FINISH, worker.stop)
        worker.serve()


def train_in_process(run: TrainingRun, settings: DemoSettings) -> None:
    """Trains a run on the same micro-batches, made here and never sent anywhere."""
    for number, (key, example) in enumerate(micro_batches(settings), 1):
        jax.block_until_ready(run.fwd_bwd(example))
        if number % settings.micro_batches == 0:
            run.update()
        emit(ReplayedBatch(key=key))


def main(settings: DemoSettings, endpoints: Endpoints) -> None:
    """Runs the trainer to its end."""
    device = jax.devices()[0]
    emit(TrainerDevice(name=str(device), kind=device.device_kind))
    params = init_params(settings.seed)
    emit(Compiled(seconds=compile_ahead(params, settings)))
    with ThreadPoolExecutor(1) as helper:
        served, in_process = (TrainingRun(params, helper) for _ in range(2))
        serve(served, endpoints, settings)
        train_in_process(in_process, settings)
        leaves = sum(len(digests.result()) for digests in served.record.digests)
    emit(
        Compared(
            leaves=leaves,
            differences=differences(served, in_process),
            parameters=tree_digest(jax.tree.leaves(served.params)),
        )
    )


if __name__ == "__main__":
    run_child(main)
