"""A trainer with a worker as a process of its own, which tells what it trained, in which order.

Run as a script with the daemon's trainer endpoint, a folder for the worker's sockets, and a mode.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash


class Ledger:
    """An engine that keeps a digest of each micro-batch it was given."""

    def __init__(self) -> None:
        self.trained: list[list[Any]] = []
        self._sum = jax.jit(lambda ids: jnp.sum(ids.astype(jnp.int32)))

    def fwd_bwd(self, batch: dict[str, Any]) -> Any:
        octets = np.asarray(batch["ids"]).tobytes()
        self.trained.append([batch["name"], xxhash.xxh3_64_hexdigest(octets)])
        return self._sum(batch["ids"])

    def update(self) -> int:
        return len(self.trained)


def main() -> None:
    from forebay import StagedEngine, TrainerWorker, attach, load_trainer_settings

    trainer_endpoint, folder, mode = sys.argv[1:4]
    endpoints = {
        "worker_endpoint": f"ipc://{folder}/worker.sock",
        "worker_data_endpoint": f"ipc://{folder}/data.sock",
    }
    settings = load_trainer_settings({"stage_batch": mode, **endpoints})
    engine = Ledger()
    queue = attach("train", endpoint=trainer_endpoint, settings=settings, timeout_s=30)
    with StagedEngine(engine, queue) as staged, TrainerWorker(staged) as worker:
        worker.register("trained", lambda: json.dumps(engine.trained), concurrent=True)
        sys.stdout.write(json.dumps({"event": "serves", "endpoint": worker.endpoint}) + "\n")
        sys.stdout.flush()
        worker.serve()


if __name__ == "__main__":
    main()
