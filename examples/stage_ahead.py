"""Stages micro-batches in this process, ahead of the steps that use them; no daemon is involved."""

import jax
import numpy as np

import forebay

loss = jax.jit(lambda tokens: tokens.mean())


class Engine:
    """Hands work to the device, and returns what that makes without waiting for it."""

    def fwd_bwd(self, batch):
        return loss(batch["tokens"])

    def update(self):
        return None


settings = forebay.TrainerSettings(stage_batch="stage", max_device_batches=1)
queue = forebay.StagingQueue(forebay.JaxTransfer(), settings=settings)
with forebay.StagedEngine(Engine(), queue) as engine:
    for number in range(3):
        tokens = np.full((4, 1024), number, np.int32)
        engine.stage_batch({"tokens": tokens, "policy_version": 7}, key=f"batch-{number}")
    for number in range(3):
        print(f"batch-{number}", engine.fwd_bwd(stage_key=f"batch-{number}"))
    print(queue.statistics)
