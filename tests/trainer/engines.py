"""Engines to stage for, and transfers that a test can hold up: real JAX arrays on virtual CPU devices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from forebay.trainer import Declined, JaxTransfer, Queued, StagedEngine, StagingQueue, TrainerSettings
from forebay.trainer.host_tree import HostTree, PlacedTree
from forebay.trainer.queue_books import Work
from forebay.trainer.transfer import OnDevice

WAIT_S = 20.0
SHAPE = (8, 37)
"""The shape of the leaf that `live` looks for; nothing else in the tests has it."""


def payload(number: int, **more: Any) -> dict[str, Any]:
    """Makes a micro-batch; more leaves or static values make it another kind of micro-batch."""
    return {"x": np.full(SHAPE, number, np.float32), "policy": 7} | more


def number_of(batch: Any) -> int:
    return int(np.asarray(batch["x"]).flat[0])


def live() -> list[int]:
    """The numbers of the micro-batches that use device memory, whoever refers to their arrays."""
    return sorted({int(np.asarray(array).flat[0]) for array in _live_arrays()})


def free_all() -> None:
    """Frees what a failed test has left on the device; the report of its failure refers to it."""
    for array in _live_arrays():
        array.delete()


def _live_arrays() -> list[jax.Array]:
    return [array for array in jax.live_arrays() if array.shape == SHAPE and not array.is_deleted()]


# --- a queue ---


class HeldTransfer(JaxTransfer):
    """A real transfer that stands still where a test holds it.

    Attributes:
        issued: The numbers of the micro-batches whose transfer began, in order.
        threads: The threads that began them.
        begun: Released when a held transfer has put all its arrays on the device.
    """

    def __init__(self, shardings: Any = None) -> None:
        super().__init__(shardings)
        self.issued: list[int] = []
        self.threads: list[threading.Thread] = []
        self.begun = threading.Semaphore(0)
        self._held: set[int] = set()
        self._may_go_on = threading.Semaphore(0)

    def hold(self, number: int) -> None:
        """Has the next transfer of a micro-batch stand still before it is complete."""
        self._held.add(number)

    def wait_until_begun(self) -> None:
        assert self.begun.acquire(timeout=WAIT_S), "no held transfer began"

    def let_go(self) -> None:
        """Lets one held transfer go on."""
        self._may_go_on.release()

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        self.issued.append(_number(placed.tree))
        self.threads.append(threading.current_thread())
        return super().issue(placed)

    def complete(self, placed: PlacedTree, issued: list[jax.Array]) -> OnDevice:
        number = _number(placed.tree)
        if number in self._held:
            self._held.remove(number)
            self.begun.release()
            assert self._may_go_on.acquire(timeout=WAIT_S), f"nobody let the transfer of {number} go on"
        return super().complete(placed, issued)


def _number(tree: HostTree) -> int:
    return int(tree.leaves[tree.paths.index("['x']")].flat[0])


def staged(
    engine: Any, mode: str = "stage", cap: int = 1, *, transfer: JaxTransfer | None = None, shardings: Any = None
) -> StagedEngine:
    settings = TrainerSettings(stage_batch=mode, max_device_batches=cap)
    return ImpatientEngine(engine, StagingQueue(transfer or JaxTransfer(shardings), settings=settings))


class ImpatientEngine(StagedEngine):
    """Waits no longer than a test does, so that a wait without an end is an error instead of a hang."""

    def stage_batch(self, payload: Any, *, key: str, timeout_s: float = WAIT_S) -> Queued | Declined:
        return super().stage_batch(payload, key=key, timeout_s=timeout_s)

    def fwd_bwd(
        self, payload: Any = None, stage_key: str | None = None, *, timeout_s: float = WAIT_S, **options: Any
    ) -> Any:
        return super().fwd_bwd(payload, stage_key, timeout_s=timeout_s, **options)

    def update(self, *, timeout_s: float = WAIT_S, **options: Any) -> Any:
        return super().update(timeout_s=timeout_s, **options)


class Looks:
    """Follows what a queue's promoter decides; made before anything is staged."""

    def __init__(self, queue: StagingQueue) -> None:
        self._state = queue._state
        self._next_work = self._state.books.next_work
        self._decided: list[bool] = []
        self._state.books.next_work = self._look  # type: ignore[method-assign]

    def _look(self) -> Work | None:
        # Under the bookkeeping lock, like the original.
        work = self._next_work()
        self._decided.append(work is not None)
        self._state.changed.notify_all()
        return work

    def settle(self) -> None:
        """Has the promoter look for work, and waits until it has done all that there is."""
        with self._state.changed:
            seen = len(self._decided)
            self._state.promoter.wake()
            assert self._state.changed.wait_for(lambda: False in self._decided[seen:], WAIT_S), self._state

    def has_work(self) -> bool:
        """Has the promoter, which must be idle, look for work; returns whether there was any."""
        with self._state.changed:
            seen = len(self._decided)
            self._state.promoter.wake()
            assert self._state.changed.wait_for(lambda: len(self._decided) > seen, WAIT_S), self._state
            return self._decided[seen]


def wait_for_on_device(queue: StagingQueue, count: int) -> None:
    """Waits until this many entries wait on the device."""
    changed = queue._state.changed
    with changed:
        assert changed.wait_for(lambda: queue._state.books.statistics().on_device == count, WAIT_S), queue


# --- engines ---


class HandWork:
    """Outputs that are ready when a test says so; until then the device keeps the inputs.

    Args:
        inputs: What the work reads.
        when_waited_for: Called by whoever waits for it; then it is finished. Else the test finishes it.
    """

    nbytes = 4

    def __init__(self, inputs: Any = None, when_waited_for: Callable[[], None] | None = None) -> None:
        self.waited_for = threading.Event()
        self._inputs = inputs
        self._when_waited_for = when_waited_for
        self._done = threading.Event()

    def finish(self) -> None:
        self._inputs = None
        self._done.set()

    def is_ready(self) -> bool:
        return self._done.is_set()

    def block_until_ready(self) -> HandWork:
        self.waited_for.set()
        if self._when_waited_for is not None:
            self._when_waited_for()
            self.finish()
        assert self._done.wait(WAIT_S), "nobody finished the work that is waited for"
        return self


class HandEngine:
    """An engine that does what a test wants.

    Args:
        by_hand: Whether its outputs are `HandWork`; else it puts out nothing.
        inside: Called with the batch inside of `fwd_bwd`.
        when_waited_for: See `HandWork`.

    Attributes:
        trained: The numbers of the micro-batches that it got.
        options: The options of each call.
        work: Its outputs, oldest first.
    """

    def __init__(
        self,
        *,
        by_hand: bool = False,
        inside: Callable[[Any], None] | None = None,
        when_waited_for: Callable[[], None] | None = None,
    ) -> None:
        self.inside = inside
        self.trained: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.work: list[HandWork] = []
        self._by_hand = by_hand
        self._when_waited_for = when_waited_for

    def fwd_bwd(self, batch: Any, **options: Any) -> HandWork | None:
        self.options.append(options)
        self.trained.append(number_of(batch))
        if self.inside is not None:
            self.inside(batch)
        return self._put_out(batch)

    def update(self, **options: Any) -> HandWork | None:
        self.options.append(options)
        return self._put_out(None)

    def _put_out(self, inputs: Any) -> HandWork | None:
        if not self._by_hand:
            return None
        self.work.append(HandWork(inputs, self._when_waited_for))
        return self.work[-1]


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


class Output:
    """What looks like a device array to a queue.

    Args:
        nbytes: Its size.
        error: What waiting for it raises.
    """

    def __init__(self, nbytes: int, *, error: Exception | None = None) -> None:
        self.nbytes = nbytes
        self.ready = False
        self.waits = 0
        self._error = error

    def is_ready(self) -> bool:
        return self.ready

    def block_until_ready(self) -> Output:
        self.waits += 1
        if self._error is not None:
            raise self._error
        self.ready = True
        return self
