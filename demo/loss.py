"""The training step: the clipped policy-gradient loss over a micro-batch, its gradients, and the update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from .micro_batch import TrainExample
from .model import MODEL_LAYERS, Params, hidden_states, token_logps

if TYPE_CHECKING:
    from jaxtyping import Array, Float

CLIP: Final = 0.2
KL_WEIGHT: Final = 0.05
VALUE_WEIGHT: Final = 0.1
LEARNING_RATE: Final = 0.1
BLOCK_ROWS: Final = 4


class Rows(NamedTuple):
    """The leaves that the loss reads; see `TrainExample`."""

    completion_ids: Any
    completion_mask: Any
    segment_ids: Any
    segment_positions: Any
    advantages: Any
    old_per_token_logps: Any
    ref_per_token_logps: Any
    sampler_is_weights: Any
    returns: Any
    routed_experts: Any


def rows_of(example: TrainExample[Any]) -> Rows:
    """Picks the leaves that the loss reads, whatever kind of array they are."""
    return Rows(*(getattr(example, field) for field in Rows._fields))


@jax.jit
def loss_and_grads(params: Params, rows: Rows) -> tuple[Float[Array, ""], Params]:
    """Computes the mean loss over a micro-batch's trained tokens, and its gradients.

    Blocks of `BLOCK_ROWS` rows are done one after another, so memory does not grow with the micro-batch.
    """
    count = len(rows.completion_ids)
    block = min(BLOCK_ROWS, count)
    rows = rows._replace(routed_experts=rows.routed_experts[:, :, :MODEL_LAYERS])

    def add_block(total: Any, first: Array) -> tuple[Any, None]:
        # The last block may start early to be full; what it repeats is not counted again.
        start = jnp.minimum(first, count - block)
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, block), rows)
        fresh = start + jnp.arange(block) >= first
        part = part._replace(completion_mask=part.completion_mask * fresh[:, None])
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_sum)(params, part)), None

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add_block, zero, jnp.arange(0, count, block))
    tokens = jnp.maximum(_trained(rows).sum(), 1)
    mean: tuple[Array, Params] = jax.tree.map(lambda value: value / tokens, total)
    return mean


def loss_sum(params: Params, rows: Rows) -> Float[Array, ""]:
    """Sums the loss over the trained tokens, each predicted from the one before it.

    Source: the clipped surrogate of PPO (Schulman et al. 2017, equation 7), the k3 estimate of the divergence from
    the reference policy (Schulman 2020), and a squared error against the returns.
    """
    trained = _trained(rows)

    def at_trained(leaf: Any) -> Any:
        # Zero elsewhere: what lies at padding must not even reach a gradient as infinity times zero.
        return jnp.where(trained, leaf, 0)

    packing = rows.completion_ids, rows.segment_ids, rows.segment_positions, rows.routed_experts
    states = hidden_states(params, *packing)[:, :-1]
    logps = at_trained(token_logps(params, states, rows.completion_ids[:, 1:]))
    old_logps, ref_logps, advantages, weights, returns = (
        at_trained(leaf[:, 1:])
        for leaf in (
            *(rows.old_per_token_logps, rows.ref_per_token_logps, rows.advantages),
            *(rows.sampler_is_weights, rows.returns),
        )
    )
    surrogate = weights * clipped_gain(jnp.exp(logps - old_logps), advantages)
    divergence = jnp.exp(ref_logps - logps) - (ref_logps - logps) - 1
    value_error = jnp.square(at_trained(states @ params.value) - returns)
    total: Array = (KL_WEIGHT * divergence + VALUE_WEIGHT * value_error - surrogate).sum()
    return total


def clipped_gain(ratio: Array, advantages: Array) -> Array:
    """Bounds what a token can gain by moving away from the policy that wrote it."""
    return jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages)


def _trained(rows: Rows) -> Any:
    inside = (rows.segment_ids[:, 1:] == rows.segment_ids[:, :-1]) & (rows.segment_ids[:, 1:] > 0)
    return inside & (rows.completion_mask[:, 1:] > 0)


@jax.jit
def add_grads(total: Params, grads: Params) -> Params:
    """Adds a micro-batch's gradients to a step's."""
    added: Params = jax.tree.map(jnp.add, total, grads)
    return added


@jax.jit
def updated(params: Params, total: Params, micro_batches: int) -> Params:
    """Takes a plain gradient step along the mean of a step's gradients."""
    rate = LEARNING_RATE / micro_batches
    moved: Params = jax.tree.map(lambda value, grad: value - rate * grad, params, total)
    return moved
