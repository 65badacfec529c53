"""Trains on three micro-batches; each is on the device before it is asked for."""

import jax

import forebay

loss = jax.jit(lambda tokens: tokens.mean())

with forebay.attach("train") as queue:
    for _ in range(3):
        with queue.take() as batch:
            tokens = batch.tree["tokens"]
            value = loss(tokens)
            batch.dispatched(value)  # from here on the next one is promoted
            print(batch.key, tokens.shape, batch.tree["temperature"], value)
