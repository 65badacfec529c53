"""A trainer that orchestrators call: a small linear model, its engine, and a worker around it."""

import jax
import jax.numpy as jnp

import forebay


@jax.jit
def loss_and_grad(weights, inputs, targets):
    return jax.value_and_grad(lambda w: jnp.mean((inputs @ w - targets) ** 2))(weights)


class Engine:
    """Accumulates gradients over a step's micro-batches, and applies them at its end."""

    def __init__(self):
        self.weights = jnp.zeros(8)
        self.total = jnp.zeros(8)
        self.count = 0

    def fwd_bwd(self, batch):
        loss, grad = loss_and_grad(self.weights, batch["inputs"], batch["targets"])
        self.total, self.count = self.total + grad, self.count + 1
        return loss

    def update(self, learning_rate):
        self.weights = self.weights - learning_rate * self.total / self.count
        self.total, self.count = jnp.zeros(8), 0
        return self.weights


settings = forebay.load_trainer_settings({"stage_batch": "stage"})
with forebay.attach("train", settings=settings) as queue:
    engine = Engine()
    with forebay.StagedEngine(engine, queue) as staged, forebay.TrainerWorker(staged) as worker:
        worker.register("weights", lambda: engine.weights)
        worker.serve()
