"""A staged engine that is fed by a real daemon, and a real transfer that stands still where a test wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forebay
from forebay.trainer import JaxTransfer, StagedEngine, StagingQueue, TrainerSettings
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.host_tree import PlacedTree
from forebay.trainer.transfer import OnDevice
from forebay.wire import MicroBatchGoneError

from .fed_orchestrator import FEATURES, ROWS, batch, name_in
from .processes import EVENT_S

FENCE = "fence"
"""A key that is trained before anything else; see `fence`."""


class HeldTransfer(JaxTransfer):
    """A real transfer that stands still, or fails, where a test wants it.

    Attributes:
        issued: The names whose transfer to the device began, in order.
        begun: Set when the held transfer has handed all its leaves to JAX.
        failing: Names whose transfers fail after that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[str] = []
        self.begun = threading.Event()
        self.failing: set[str] = set()
        self._held = ""
        self._may_go_on = threading.Event()

    def hold(self, name: str) -> None:
        self._held = name

    def let_go(self) -> None:
        self._held = ""
        self._may_go_on.set()

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        self.issued.append(self._name(placed))
        return super().issue(placed)

    def complete(self, placed: PlacedTree, issued: list[jax.Array]) -> OnDevice:
        name = self._name(placed)
        if name == self._held:
            self.begun.set()
            assert self._may_go_on.wait(EVENT_S), f"nobody let the transfer of {name} go on"
        if name in self.failing:
            raise RuntimeError("RESOURCE_EXHAUSTED: no room on the device")
        return super().complete(placed, issued)

    def _name(self, placed: PlacedTree) -> str:
        return placed.tree.leaves[placed.tree.paths.index("['name']")].tobytes().decode()


class HeldOutput:
    """What a step has handed to the device, and what the device finishes when a test says so."""

    def __init__(self) -> None:
        self.waited_for = threading.Event()
        self._done = threading.Event()

    def finish(self) -> None:
        self._done.set()

    def is_ready(self) -> bool:
        return self._done.is_set()

    def block_until_ready(self) -> HeldOutput:
        self.waited_for.set()
        assert self._done.wait(EVENT_S), "nobody finished the work that is waited for"
        return self


@jax.jit
def fwd_bwd(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights) - y) ** 2)

    return jax.value_and_grad(loss)(weights)


class Engine:
    """Trains a few weights.

    Args:
        inside: Called with each micro-batch's name inside of `fwd_bwd`.

    Attributes:
        trained: By whose bytes it was trained, in order.
        most_live: The most micro-batches that had device memory when a step began, this one included.
        bits: Every loss, every gradient and the weights after each update.
    """

    def __init__(self, inside: Callable[[str], Any] = lambda _: None) -> None:
        self.trained: list[str] = []
        self.most_live = 0
        self.bits: list[bytes] = []
        self._inside = inside
        self._weights = jnp.linspace(-1, 1, FEATURES, dtype=jnp.float32)
        self._grads = jnp.zeros_like(self._weights)

    def fwd_bwd(self, batch: Any) -> Any:
        live = {array.unsafe_buffer_pointer() for array in jax.live_arrays() if array.shape == (ROWS, FEATURES)}
        self.most_live = max(self.most_live, len(live))
        name = name_in(batch)
        self.trained.append(name)
        outputs = self._inside(name)
        if outputs is not None:
            return outputs
        loss, grads = fwd_bwd(self._weights, batch["x"], batch["y"])
        self._grads = self._grads + grads
        self._keep(loss, grads)
        return loss, grads

    def update(self) -> Any:
        self._weights = self._weights - 0.1 * self._grads
        self._grads = jnp.zeros_like(self._weights)
        self._keep(self._weights)
        return self._weights

    def _keep(self, *arrays: jax.Array) -> None:
        self.bits += [np.asarray(array).tobytes() for array in arrays]


class Attached(StagedEngine):
    """A staged engine on an attached queue, and the parts of it that tests look at.

    Args:
        daemon: To whose queue it attaches.
        cap: Of micro-batches on the device.
        mode: `stage` or `serialize`.
        first: A key that is staged in process before anything is asked for; empty for none.
        inside: Called with each micro-batch's name inside of the engine's `fwd_bwd`; what it returns, if anything,
            is what the engine returns.
    """

    def __init__(
        self,
        daemon: forebay.LocalDaemon,
        *,
        cap: int = 1,
        mode: str = "stage",
        first: str = "",
        inside: Callable[[str], Any] = lambda _: None,
    ) -> None:
        self.inner = Engine(inside)
        self.transfer = HeldTransfer()
        feed = DaemonFeed(daemon.trainer_endpoint, "train", timeout_s=EVENT_S)
        settings = TrainerSettings(stage_batch=mode, max_device_batches=cap)
        super().__init__(self.inner, StagingQueue(self.transfer, settings=settings, feed=feed))
        if first:
            self.stage_batch(batch(first), key=first)
        self.queue.put(batch(FENCE), key=FENCE, timeout_s=EVENT_S).close()

    @property
    def trained(self) -> list[str]:
        return self.inner.trained

    def fence(self) -> None:
        """Comes back when daemon and trainer have heard all that they had told each other before.

        To ask for a key that is trained takes one message each way, on the connection that carries the others.
        """
        with pytest.raises(MicroBatchGoneError, match="consumed"):
            self.queue.take(FENCE, timeout_s=EVENT_S)

    def close(self) -> None:
        # Also when a test failed while it held a transfer.
        self.transfer.let_go()
        super().close()

    def train(self, count: int) -> None:
        for _ in range(count):
            self.fwd_bwd(stage_timeout_s=EVENT_S)
