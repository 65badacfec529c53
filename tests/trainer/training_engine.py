"""An engine that trains a small network, and keeps every bit that it has computed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Programs(NamedTuple):
    """The compiled programs of a `TrainingEngine`, and where they want the leaves of a micro-batch."""

    whole: NamedSharding
    shardings: dict[str, NamedSharding]
    fwd_bwd: Any
    accumulate: Any
    update: Any


FEATURES = 48


@functools.cache
def programs(devices: int) -> Programs:
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    shardings = {"x": rows, "y": rows, "weight": whole}

    def loss(weights: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch["x"] @ weights["a"])
        return batch["weight"] * jnp.mean((hidden @ weights["b"] - batch["y"]) ** 2)

    return Programs(
        whole,
        shardings,
        jax.jit(jax.value_and_grad(loss), in_shardings=(whole, shardings), out_shardings=whole),
        jax.jit(lambda old, new: jax.tree.map(jnp.add, old, new), donate_argnums=0),
        jax.jit(lambda old, grads: jax.tree.map(lambda w, g: w - 0.1 * g, old, grads), donate_argnums=0),
    )


class TrainingEngine:
    """Trains a small network, and never waits for the device.

    Args:
        devices: Over how many devices the rows of a micro-batch go.

    Attributes:
        moved: Leaves that did not lie where the program wants them.
    """

    def __init__(self, devices: int) -> None:
        self.programs = programs(devices)
        random = np.random.default_rng(0)
        host = {
            "a": random.normal(size=(FEATURES, FEATURES)).astype(np.float32),
            "b": random.normal(size=(FEATURES, 4)).astype(np.float32),
        }
        self._weights = jax.device_put(host, self.programs.whole)
        self._grads: Any = None
        self._history: list[Any] = []
        self.moved: list[str] = []

    def fwd_bwd(self, batch: Any, *, scale: float = 1.0) -> Any:
        leaves = {name: batch[name] for name in self.programs.shardings}
        for name, leaf in leaves.items():
            wanted = self.programs.shardings[name]
            if isinstance(leaf, jax.Array) and not (leaf.committed and leaf.sharding == wanted):
                self.moved.append(name)
        loss, grads = self.programs.fwd_bwd(self._weights, leaves)
        self._history.append((loss, _copy(grads), batch["policy"], scale))
        # Donates what the call before has put out, as trainers do.
        self._grads = grads if self._grads is None else self.programs.accumulate(self._grads, grads)
        return loss, self._grads

    def update(self) -> Any:
        self._history.append(_copy(self._grads))
        self._weights, self._grads = self.programs.update(self._weights, self._grads), None
        self._history.append(_copy(self._weights))
        return self._weights

    def trace(self) -> list[bytes]:
        """Returns every bit that it has computed: losses, gradients, their sums and the weights, in order."""
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self._history)]


def _copy(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def micro_batch(number: int) -> dict[str, Any]:
    """Makes one for a `TrainingEngine`."""
    random = np.random.default_rng(number)
    return {
        "x": random.normal(size=(16, FEATURES)).astype(np.float32),
        "y": random.normal(size=(16, 4)).astype(np.float32),
        "weight": np.array(random.random(), np.float32),
        "policy": number,
    }
