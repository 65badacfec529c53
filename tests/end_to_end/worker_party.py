"""A trainer's worker as a process of its own, whose steps stand still until a word comes on its standard input.

Run as a script. It prints one JSON object a line for everything that happens to it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np

from forebay import JaxTransfer, StagedEngine, StagingQueue, TrainerSettings, TrainerWorker
from forebay.trainer import crew


def say(**event: Any) -> None:
    """Prints an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Engine:
    """Trains a micro-batch when it is told to go on; those above a hundred never end."""

    def __init__(self) -> None:
        self.trained: list[int] = []

    def fwd_bwd(self, batch: Any) -> Any:
        number = int(np.asarray(batch["x"]).flat[0])
        self.trained.append(number)
        say(event="training", number=number)
        if number > 100:
            threading.Event().wait()
        sys.stdin.readline()
        return {"number": number, "total": jnp.sum(batch["x"])}

    def update(self) -> list[int]:
        return self.trained


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--drain-s", type=float, default=60.0)
    parser.add_argument("--exit-s", type=float, default=30.0, help="how long the exit waits for a step that hangs")
    options = parser.parse_args()
    crew._EXIT_S = options.exit_s  # type: ignore[misc]
    settings = TrainerSettings(
        stage_batch="stage",
        worker_endpoint=f"ipc://{options.folder}/worker.sock",
        worker_data_endpoint=f"ipc://{options.folder}/worker_data.sock",
        worker_drain_s=options.drain_s,
    )
    engine = StagedEngine(Engine(), StagingQueue(JaxTransfer(), settings=settings))
    try:
        with engine, TrainerWorker(engine) as worker:
            say(event="serving", endpoint=worker.endpoint)
            worker.serve()
    except KeyboardInterrupt:
        say(event="interrupted")
    say(event="done")


if __name__ == "__main__":
    main()
