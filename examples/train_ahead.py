"""Trains three steps of four micro-batches; those to come are staged while the trainer works."""

import asyncio

import numpy as np

import forebay


async def rollouts():
    rng = np.random.default_rng(0)
    for _ in range(3):
        for index in range(4):
            inputs = rng.standard_normal((256, 8), np.float32)
            batch = {"inputs": inputs, "targets": inputs @ np.arange(8, dtype=np.float32)}
            yield forebay.MicroBatch(batch, ends_step=index == 3)


async def main() -> None:
    async with forebay.TrainerHandle() as trainer, forebay.StageAhead(trainer, rollouts()) as ahead:
        async for step in ahead:
            losses = [float(trained.value) async for trained in step]
            await trainer.update(learning_rate=0.3)  # the next step's micro-batches are staged meanwhile
            staged, fallbacks = (int(step.metrics()[f"stage/{name}"]) for name in ("staged", "fallbacks"))
            print(f"step {step.number}: loss {np.mean(losses):.2f}, {staged} staged, {fallbacks} fallbacks")
        print(np.round(await trainer.call("weights"), 1))


asyncio.run(main())
