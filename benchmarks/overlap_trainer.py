"""The trainer of the benchmark of staging ahead: a worker around a stand-in for the device's compute.

Run as `python -m forebay.benchmarks.overlap_trainer TRAINER_ENDPOINT FOLDER SETTINGS`; it serves until its
standard input ends, which is also when whoever started it is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import msgspec

from forebay.trainer import StagedEngine, StageMode, StagingQueue, TrainerSettings, TrainerWorker
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.wire import ForebayError

from .overlap_result import OverlapBenchSettings
from .payload import micro_batch, payload_bytes
from .slow_link import SlowLinkTransfer
from .stand_in import TimedEngine

_ATTACH_S = 30.0


def serve(trainer_endpoint: str, folder: Path, settings: OverlapBenchSettings) -> None:
    """Serves until standard input ends."""
    workload = settings.workload(settings.wires[0])
    transfer = SlowLinkTransfer(workload.copy_s, payload_bytes(micro_batch(settings.payload_mib)))
    trainer_settings = TrainerSettings(
        stage_batch=StageMode.STAGE.value,
        worker_endpoint=f"ipc://{folder}/worker.sock",
        worker_data_endpoint=f"ipc://{folder}/worker-data.sock",
    )
    feed = DaemonFeed(trainer_endpoint, "train", timeout_s=_ATTACH_S)
    queue = StagingQueue(transfer, settings=trainer_settings, feed=feed)
    engine = TimedEngine(workload.compute_s, update_s=workload.update_s)
    with engine, StagedEngine(engine, queue) as staged, TrainerWorker(staged) as worker:
        worker.register("late_copies", lambda: transfer.late_transfers)
        worker.register("device", _device)
        threading.Thread(target=_stop_with_input, args=(worker,), daemon=True).start()
        sys.stdout.write(worker.endpoint + "\n")
        sys.stdout.flush()
        worker.serve()


def _device() -> str:
    device: Any = jax.devices()[0]
    return f"{device} ({device.device_kind})"


def _stop_with_input(worker: TrainerWorker) -> None:
    # os.read, not sys.stdin: a thread inside of a buffered read would upset the interpreter's exit.
    while os.read(0, 4096):
        pass
    worker.stop()


def main() -> None:
    """Runs as a process of its own."""
    settings = msgspec.json.decode(sys.argv[3], type=OverlapBenchSettings)
    try:
        serve(sys.argv[1], Path(sys.argv[2]), settings)
    except ForebayError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
