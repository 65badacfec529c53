"""The model sees its own segment's past and the routing, and the loss sees trained tokens only."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.demo import loss
from forebay.demo.batches import micro_batches
from forebay.demo.loss import BLOCK_ROWS, Rows, loss_and_grads, rows_of, updated
from forebay.demo.model import MODEL_LAYERS, Params, hidden_states, init_params
from forebay.demo.settings import EXPERTS, DemoSettings

ROWS, TOKENS, FIRST_END, SECOND_START, SECOND_END = 5, 160, 60, 64, 150


@pytest.fixture(scope="module")
def params() -> Params:
    return jax.tree.map(lambda leaf: leaf + 0.01, init_params(0))  # type: ignore[no-any-return]


@pytest.fixture
def rows() -> Rows:
    """Two segments in each row, padding between and after them."""
    rng = np.random.default_rng(0)
    segment_ids = np.zeros((ROWS, TOKENS), np.int32)
    segment_ids[:, :FIRST_END] = 1
    segment_ids[:, SECOND_START:SECOND_END] = 2
    positions = np.tile(np.arange(TOKENS, dtype=np.int32), (ROWS, 1))
    positions[:, SECOND_START:] -= SECOND_START

    def floats() -> Any:
        return rng.standard_normal((ROWS, TOKENS), dtype=np.float32)

    return Rows(
        completion_ids=rng.integers(0, 256, (ROWS, TOKENS), dtype=np.int32),
        completion_mask=(segment_ids > 0).astype(np.float32),
        segment_ids=segment_ids,
        segment_positions=positions,
        advantages=floats(),
        old_per_token_logps=-5.5 + 0.1 * floats(),
        ref_per_token_logps=-5.5 + 0.1 * floats(),
        sampler_is_weights=np.abs(floats()),
        returns=floats(),
        routed_experts=rng.integers(0, EXPERTS, (ROWS, TOKENS, MODEL_LAYERS, 4), dtype=np.int16),
    )


def changed(rows: Rows, field: str, where: Any, value: Any) -> Rows:
    leaf = getattr(rows, field).copy()
    leaf[where] = value
    return rows._replace(**{field: leaf})


def states(params: Params, rows: Rows) -> np.ndarray[Any, Any]:
    packing = rows.completion_ids, rows.segment_ids, rows.segment_positions, rows.routed_experts
    return np.asarray(hidden_states(params, *packing))


def same_trees(left: Any, right: Any) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


@pytest.mark.parametrize("position", [0, 31, 59, 64, 100, 130, 149])
def test_a_token_changes_only_itself_and_what_follows_in_its_segment(
    params: Params, rows: Rows, position: int
) -> None:
    other = changed(rows, "completion_ids", (2, position), (rows.completion_ids[2, position] + 1) % 256)
    differs = np.abs(states(params, rows) - states(params, other)).max(-1) > 1e-6
    end = FIRST_END if position < FIRST_END else SECOND_END
    expected = np.zeros((ROWS, TOKENS), bool)
    expected[2, position:end] = True
    assert (differs == expected).all()


def test_a_segment_is_seen_the_same_wherever_it_lies(params: Params, rows: Rows) -> None:
    moved = Rows(*(np.roll(leaf, 10, axis=1) for leaf in rows))
    assert np.allclose(
        states(params, rows)[:, SECOND_START:SECOND_END],
        states(params, moved)[:, SECOND_START + 10 : SECOND_END + 10],
        atol=1e-5,
    )


def test_unset_experts_contribute_nothing(params: Params, rows: Rows) -> None:
    unset = rows._replace(routed_experts=np.full_like(rows.routed_experts, -1))
    layers = tuple(layer._replace(experts=layer.experts * 0) for layer in params.layers)
    assert np.allclose(states(params, unset), states(params._replace(layers=layers), rows), atol=1e-6)


def test_some_unset_experts_leave_the_others_to_share_the_weight(params: Params, rows: Rows) -> None:
    twice = rows._replace(routed_experts=np.repeat(rows.routed_experts[..., :1], 2, axis=-1))
    once = changed(twice, "routed_experts", (..., 1), -1)
    assert np.allclose(states(params, twice), states(params, once), atol=1e-5)


def test_order_of_the_experts_does_not_matter(params: Params, rows: Rows) -> None:
    turned = rows._replace(routed_experts=rows.routed_experts[..., ::-1].copy())
    assert np.allclose(states(params, rows), states(params, turned), atol=1e-5)


def test_gradients_depend_on_the_routing_of_each_layer(params: Params, rows: Rows) -> None:
    _, grads = loss_and_grads(params, rows)
    for layer in range(MODEL_LAYERS):
        other = changed(rows, "routed_experts", (0, 5, layer), (rows.routed_experts[0, 5, layer] + 1) % EXPERTS)
        _, other_grads = loss_and_grads(params, other)
        assert not same_trees(grads.layers[layer].experts, other_grads.layers[layer].experts)


def test_only_chosen_experts_get_a_gradient(params: Params, rows: Rows) -> None:
    few = rows._replace(routed_experts=rows.routed_experts % 7)
    _, grads = loss_and_grads(params, few)
    for layer in grads.layers:
        used = np.abs(np.asarray(layer.experts)).max(-1) > 0
        assert used[:7].all()
        assert not used[7:].any()


@pytest.mark.parametrize("value", [0.0, 1e30, -1e30, np.inf, np.nan])
def test_floats_at_padding_change_no_bit(params: Params, rows: Rows, value: float) -> None:
    expected = loss_and_grads(params, rows)
    padding = rows.segment_ids == 0
    for field in ("advantages", "old_per_token_logps", "ref_per_token_logps", "sampler_is_weights", "returns"):
        assert same_trees(loss_and_grads(params, changed(rows, field, padding, value)), expected), field


def test_tokens_at_padding_change_no_bit(params: Params, rows: Rows) -> None:
    expected = loss_and_grads(params, rows)
    padding = rows.segment_ids == 0
    for field in ("completion_ids", "segment_positions", "routed_experts", "completion_mask"):
        assert same_trees(loss_and_grads(params, changed(rows, field, padding, 1)), expected), field


def test_first_token_of_a_segment_is_not_predicted_from_another_segment(params: Params, rows: Rows) -> None:
    # The same rows with the padding between the segments gone: still nobody predicts across the border.
    joined = changed(rows, "segment_ids", np.s_[:, FIRST_END:SECOND_START], 1)
    first = changed(joined, "advantages", np.s_[:, SECOND_START], 1e3)
    assert same_trees(loss_and_grads(params, joined), loss_and_grads(params, first))


def test_masked_tokens_are_not_trained(params: Params, rows: Rows) -> None:
    masked = changed(rows, "completion_mask", np.s_[:, 70:80], 0)
    other = changed(masked, "advantages", np.s_[:, 70:80], 1e3)
    assert same_trees(loss_and_grads(params, masked), loss_and_grads(params, other))
    trained = changed(rows, "advantages", np.s_[:, 70:80], 1e3)
    assert not same_trees(loss_and_grads(params, rows), loss_and_grads(params, trained))


def test_micro_batch_of_padding_alone_has_no_loss_and_no_gradient(params: Params, rows: Rows) -> None:
    empty = rows._replace(segment_ids=np.zeros_like(rows.segment_ids))
    value, grads = loss_and_grads(params, empty)
    assert float(value) == 0.0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("count", [1, BLOCK_ROWS, BLOCK_ROWS + 1])
def test_blocks_of_rows_add_up_to_the_whole(params: Params, rows: Rows, count: int) -> None:
    some = Rows(*(leaf[:count] for leaf in rows))
    value, grads = loss_and_grads(params, some)
    whole, whole_grads = jax.jit(jax.value_and_grad(loss.loss_sum))(params, some)
    trained = count * (FIRST_END - 1 + SECOND_END - SECOND_START - 1)
    assert np.allclose(value, whole / trained, rtol=1e-4)
    for left, right in zip(jax.tree.leaves(grads), jax.tree.leaves(whole_grads), strict=True):
        assert np.allclose(left, right / trained, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"), [(1.5, 1, 1.2), (0.5, 1, 0.5), (1.5, -1, -1.5), (0.5, -1, -0.8)]
)
def test_gain_is_clipped_where_it_would_grow(ratio: float, advantage: float, gain: float) -> None:
    assert np.allclose(loss.clipped_gain(jnp.float32(ratio), jnp.float32(advantage)), gain)


def test_gradient_step_lowers_the_loss() -> None:
    _, example = next(micro_batches(DemoSettings(payload_mib=2)))
    rows, params = rows_of(example), init_params(0)
    before, grads = loss_and_grads(params, rows)
    after, _ = loss_and_grads(updated(params, grads, 1), rows)
    assert float(after) < float(before)


def test_same_seed_gives_the_same_parameters() -> None:
    assert same_trees(init_params(5), init_params(5))
    assert not same_trees(init_params(5), init_params(6))
