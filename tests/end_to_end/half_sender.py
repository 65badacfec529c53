"""An orchestrator that sends a payload so slowly that it can be killed in the middle; run as a script."""

from __future__ import annotations

import asyncio
import sys

import numpy as np

from forebay import SteadyPace, TrainerHandle


async def send(endpoint: str) -> None:
    async with TrainerHandle(endpoint, retry_s=0.05, pace=SteadyPace(4 << 20)) as handle:
        await handle.train_step({"x": np.zeros(1 << 30, np.uint8)})


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1]))
