"""An asynchronous RL loop whose engine has the three calls of Tunix's distributed engine, on a Forebay trainer.

Several rollout workers write trajectories with whatever policy they have; the loop collects them into
micro-batches, stages each while the one before is trained, and applies an update at every step's end. It needs the
trainer of serve_trainer.py.
"""

import asyncio
import itertools
import uuid

import numpy as np

import forebay

STEPS, MICRO_BATCHES, TRAJECTORIES = 3, 4, 8


class DistributedEngine:
    """What the loop asks of a trainer somewhere else."""

    def __init__(self, trainer: forebay.TrainerHandle, run: str) -> None:
        self._trainer = trainer
        self._keys = (f"{run}/{number}" for number in itertools.count())
        self._doubtful = {}

    async def stage_train_batch(self, payload):
        """Stages a payload; returns its key, or None if it must be passed to train_step."""
        key = next(self._keys)
        try:
            outcome = await self._trainer.stage(payload, key=key)
        except forebay.ForebayError:
            # Its bytes may land yet: train_step passes payload and key, and whatever is there is trained once.
            self._doubtful[key] = payload
            return key
        return None if isinstance(outcome, forebay.Refusal) else key

    async def reset_staged_batches(self):
        """Drops all that is staged."""
        self._doubtful.clear()
        await self._trainer.reset_staged()

    async def train_step(self, payload=None, *, stage_key=None):
        """Trains a staged payload, or the one that is passed."""
        payload = self._doubtful.pop(stage_key, payload)
        return (await self._trainer.train_step(payload, stage_key)).value

    async def update(self, **options):
        return await self._trainer.update(**options)


async def write_rollouts(worker: int, trajectories: asyncio.Queue) -> None:
    rng = np.random.default_rng(worker)
    while True:
        inputs = rng.standard_normal((32, 8), np.float32)
        await trajectories.put({"inputs": inputs, "targets": inputs @ np.arange(8, dtype=np.float32)})


async def micro_batch(trajectories: asyncio.Queue):
    parts = [await trajectories.get() for _ in range(TRAJECTORIES)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


async def train(engine: DistributedEngine, trajectories: asyncio.Queue) -> None:
    payload = await micro_batch(trajectories)
    key = await engine.stage_train_batch(payload)
    for step in range(STEPS):
        losses = []
        for _ in range(MICRO_BATCHES):
            running = asyncio.create_task(engine.train_step(None if key else payload, stage_key=key))
            payload = await micro_batch(trajectories)
            key = await engine.stage_train_batch(payload)
            losses.append(float(await running))
        await engine.update(learning_rate=0.3)
        print(f"step {step}: loss {np.mean(losses):.1f}")
    await engine.reset_staged_batches()  # one was staged beyond the last step


async def main() -> None:
    trajectories = asyncio.Queue(maxsize=2 * TRAJECTORIES)
    rollouts = [asyncio.create_task(write_rollouts(worker, trajectories)) for worker in range(3)]
    async with forebay.TrainerHandle() as trainer:
        await train(DistributedEngine(trainer, run=uuid.uuid4().hex), trajectories)
    for rollout in rollouts:
        rollout.cancel()


asyncio.run(main())
