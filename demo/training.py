"""One training run over micro-batches, wherever they come from; and comparing two runs bit for bit."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .loss import Rows, add_grads, loss_and_grads, updated
from .model import Params

if TYPE_CHECKING:
    from jaxtyping import Array, Float

_SHOWN_DIFFERENCES = 8


def compile_step(params: Params, rows: Rows) -> float:
    """Compiles all that a step runs, so that no later dispatch waits for the compiler.

    Returns:
        Seconds that it took.
    """
    started = time.monotonic()
    loss_and_grads.lower(params, rows).compile()
    jax.block_until_ready(updated(params, add_grads(params, params), 1))
    return time.monotonic() - started


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run leaves to compare; one item a micro-batch, but for `step_grads`.

    Attributes:
        keys: In the order in which they were trained.
        digests: From `leaf_digests`.
        losses: float32 scalars.
        step_grads: A step's gradients, summed over its micro-batches; one a step.
    """

    keys: list[str] = dataclasses.field(default_factory=list)
    digests: list[dict[str, str]] = dataclasses.field(default_factory=list)
    losses: list[Float[Array, ""]] = dataclasses.field(default_factory=list)
    step_grads: list[Params] = dataclasses.field(default_factory=list)


class TrainingRun:
    """Trains on one micro-batch after another and records what came out.

    Args:
        params: To start from.
        micro_batches: Micro-batches a step.

    Attributes:
        params: After the last whole step; not ready before `wait`.
        record: What came out so far.
    """

    def __init__(self, params: Params, micro_batches: int) -> None:
        self.params = params
        self.record = RunRecord()
        self._micro_batches = micro_batches
        self._total: Params | None = None

    def dispatch(self, key: str, rows: Rows) -> None:
        """Hands a micro-batch to the device; after a step's last one, the update too."""
        loss, grads = loss_and_grads(self.params, rows)
        self._total = grads if self._total is None else add_grads(self._total, grads)
        self.record.keys.append(key)
        self.record.losses.append(loss)
        if len(self.record.keys) % self._micro_batches == 0:
            self.record.step_grads.append(self._total)
            self.params = updated(self.params, self._total, self._micro_batches)
            self._total = None

    def wait(self) -> float:
        """Blocks until all that was dispatched is done.

        Returns:
            The last micro-batch's loss.
        """
        jax.block_until_ready((self.record.losses[-1], self._total, self.params))
        return float(self.record.losses[-1])


def differences(first: TrainingRun, second: TrainingRun) -> tuple[str, ...]:
    """Names what is not the same bit for bit in two runs: leaves, losses, gradients, parameters.

    Returns:
        A line for each, the first few of them.
    """
    one, other = first.record, second.record
    if one.keys != other.keys:
        return (f"keys: {one.keys} against {other.keys}",)
    found = []
    for key, left, right in zip(one.keys, one.digests, other.digests, strict=True):
        unequal = (name for name in left if left[name] != right[name])
        found += [f"{key} {name}: {left[name]} against {right[name]}" for name in unequal]
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
