"""An orchestrator that has a worker train one inline payload. Run as a script: the endpoint, the chunk to hold."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))


async def step(endpoint: str, chunk: int) -> None:
    from party import held_pace, say

    from forebay import TrainerHandle

    payload = {"x": np.full((8, 250_000), 1, np.float32), "name": "batch 1"}
    async with TrainerHandle(endpoint, retry_s=0.2, timeout_s=60, pace=held_pace(chunk)) as handle:
        trained = await handle.train_step(payload)
        say(event="trained", number=trained.value["number"])
    say(event="done")


if __name__ == "__main__":
    asyncio.run(step(sys.argv[1], int(sys.argv[2])))
