"""Stages three micro-batches and waits until the last one is trained."""

import asyncio

import numpy as np

import forebay


async def main() -> None:
    async with forebay.StagingClient() as client:
        for step in range(3):
            batch = {"tokens": np.full((4, 1024), step, np.int32), "temperature": 0.7}
            result = await client.stage(batch, key=f"step-{step}", policy_version=7)
            if isinstance(result, forebay.Refusal):
                raise SystemExit(result.words)
            print("staged", result.key)
        print(await client.wait("step-2", until="consumed"))


asyncio.run(main())
