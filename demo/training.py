"""The demonstration's engine: one training run, whoever calls it; and comparing two runs bit for bit."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from forebay.wire import ProtocolError

from .digests import leaf_digests
from .loss import Rows, add_grads, loss_and_grads, rows_of, updated
from .micro_batch import TrainExample
from .model import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Float

_SHOWN_DIFFERENCES = 8
_MEASURE_S = 2.0


def compile_step(params: Params, rows: Rows) -> float:
    """Compiles all that a step runs, so that no later dispatch waits for the compiler.

    Returns:
        Seconds that it took.
    """
    started = time.monotonic()
    loss_and_grads.lower(params, rows).compile()
    jax.block_until_ready(updated(params, add_grads(params, params), 1))
    return time.monotonic() - started


def measure_compute(params: Params, rows: Rows) -> float:
    """Returns the seconds of a micro-batch's compute: of a few the shortest, since what else runs adds to it."""
    seconds: list[float] = []
    while not seconds or sum(seconds) < _MEASURE_S:
        began_at = time.monotonic()
        jax.block_until_ready(loss_and_grads(params, rows))
        seconds.append(time.monotonic() - began_at)
    return min(seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run leaves to compare; one item a micro-batch, but for `step_grads`.

    Attributes:
        digests: From `leaf_digests`; each may still be under way.
        losses: float32 scalars.
        step_grads: A step's gradients, summed over its micro-batches; one a step.
    """

    digests: list[Future[dict[str, str]]] = dataclasses.field(default_factory=list)
    losses: list[Float[Array, ""]] = dataclasses.field(default_factory=list)
    step_grads: list[Params] = dataclasses.field(default_factory=list)


class TrainingRun:
    """Trains on one micro-batch after another: an engine for `StagedEngine`, or to be called as it is.

    Args:
        params: To start from.
        helper: Makes the digests, beside the device's work: they must not delay the next dispatch.

    Attributes:
        params: After the last update.
        record: What came out so far.
    """

    def __init__(self, params: Params, helper: Executor) -> None:
        self.params = params
        self.record = RunRecord()
        self._helper = helper
        self._total: Params | None = None
        self._micro_batches = 0

    def fwd_bwd(self, example: TrainExample[Any]) -> Float[Array, ""]:
        """Hands a micro-batch's forward and backward pass to the device, and adds up the gradients there.

        Args:
            example: With arrays on the device, or numpy's, which are transferred with the call.

        Returns:
            The loss, once the device has made it.

        Raises:
            ProtocolError: It is something else; nothing was handed over.
        """
        if not isinstance(example, TrainExample):
            raise ProtocolError("the micro-batch is no TrainExample", got=type(example).__name__)
        loss: Array
        loss, grads = loss_and_grads(self.params, rows_of(example))
        self._total = grads if self._total is None else add_grads(self._total, grads)
        self._micro_batches += 1
        self.record.losses.append(loss)
        self.record.digests.append(self._helper.submit(leaf_digests, example))
        return loss

    def update(self) -> Params:
        """Hands the step's update to the device.

        Returns:
            The new parameters, once the device has made them.

        Raises:
            ProtocolError: The step has no micro-batch.
        """
        if self._total is None:
            raise ProtocolError("an update without a micro-batch before it")
        self.record.step_grads.append(self._total)
        self.params = updated(self.params, self._total, self._micro_batches)
        self._total, self._micro_batches = None, 0
        return self.params


def differences(first: TrainingRun, second: TrainingRun) -> tuple[str, ...]:
    """Names what is not the same bit for bit in two runs: leaves, losses, gradients, parameters.

    Returns:
        A line for each, the first few of them.
    """
    one, other = first.record, second.record
    counts = [(len(record.digests), len(record.step_grads)) for record in (one, other)]
    if counts[0] != counts[1]:
        return (f"micro-batches and steps: {counts[0]} against {counts[1]}",)
    found = []
    for number, (left, right) in enumerate(zip(one.digests, other.digests, strict=True)):
        pairs = [(name, digest, right.result()[name]) for name, digest in left.result().items()]
        found += [f"micro-batch {number} {name}: {a} against {b}" for name, a, b in pairs if a != b]
    found += _unequal("loss", one.losses, other.losses)
    found += _unequal("gradients", one.step_grads, other.step_grads)
    found += _unequal("parameters", first.params, second.params)
    return tuple(found[:_SHOWN_DIFFERENCES])


def _unequal(what: str, left: Any, right: Any) -> list[str]:
    pairs = zip(jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right), strict=True)
    # As bytes: NaN equals itself, and -0.0 differs from 0.0.
    return [
        f"{what}{jax.tree_util.keystr(path)} differs"
        for (path, a), b in pairs
        if np.asarray(a).tobytes() != np.asarray(b).tobytes()
    ]
