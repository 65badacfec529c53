"""A run's record is what was trained, and comparing two runs misses no bit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.demo.batches import micro_batches
from forebay.demo.digests import leaf_digests
from forebay.demo.loss import loss_and_grads, rows_of, updated
from forebay.demo.micro_batch import TrainExample
from forebay.demo.model import init_params
from forebay.demo.settings import DemoSettings
from forebay.demo.training import TrainingRun, compile_step, differences
from forebay.wire import Array

STATIC_FIELDS = ("old_values", "num_segments", "metadata", "sampler_agreement_applied")
SETTINGS = DemoSettings(steps=2, micro_batches=2, payload_mib=0.5)


@pytest.fixture(scope="module")
def batches() -> list[tuple[str, TrainExample[Array]]]:
    return list(micro_batches(SETTINGS))


def trained(batches: list[tuple[str, TrainExample[Array]]], seed: int = 0) -> TrainingRun:
    run = TrainingRun(init_params(seed), SETTINGS.micro_batches)
    for key, example in batches:
        run.record.digests.append(leaf_digests(example))
        run.dispatch(key, rows_of(example))
        run.wait()
    return run


def one_bit_off(array: Any) -> Any:
    changed = np.array(array)
    changed.reshape(-1).view(np.uint8)[-1] ^= 1
    return changed


def test_two_runs_on_the_same_batches_are_the_same(batches: list[tuple[str, TrainExample[Array]]]) -> None:
    assert differences(trained(batches), trained(batches)) == ()


def test_a_steps_gradients_are_summed_and_its_update_is_their_mean(
    batches: list[tuple[str, TrainExample[Array]]],
) -> None:
    params = init_params(0)
    (_, one), (_, other) = (loss_and_grads(params, rows_of(example)) for _, example in batches[:2])
    total = jax.tree.map(jnp.add, one, other)
    run = trained(batches[:2])
    assert len(run.record.step_grads) == 1
    for left, right in zip(jax.tree.leaves(run.record.step_grads[0]), jax.tree.leaves(total), strict=True):
        assert (left == right).all()
    for left, right in zip(jax.tree.leaves(run.params), jax.tree.leaves(updated(params, total, 2)), strict=True):
        assert (left == right).all()


def test_parameters_stay_until_the_steps_last_micro_batch(batches: list[tuple[str, TrainExample[Array]]]) -> None:
    run = trained(batches[:3])
    assert len(run.record.step_grads) == 1
    assert len(run.record.losses) == 3


def test_compiling_ahead_leaves_nothing_to_compile() -> None:
    # Of a shape that no other test uses: else it would be compiled already.
    _, example = next(micro_batches(DemoSettings(payload_mib=2.5)))
    rows, params = rows_of(example), init_params(0)
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event and duration_secs:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert compile_step(params, rows) > 0
        assert compiled
        compiled.clear()
        run = TrainingRun(params, 2)
        for key in "ab":
            run.dispatch(key, rows)
        run.wait()
        assert compiled == []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("where", ["losses", "step_grads", "params"])
def test_one_bit_in_what_came_out_is_a_difference(
    batches: list[tuple[str, TrainExample[Array]]], where: str
) -> None:
    run, other = trained(batches), trained(batches)
    if where == "params":
        other.params = other.params._replace(value=one_bit_off(other.params.value))
    elif where == "losses":
        other.record.losses[1] = one_bit_off(other.record.losses[1])
    else:
        grads = other.record.step_grads[1]
        other.record.step_grads[1] = grads._replace(embedding=one_bit_off(grads.embedding))
    found = {"params": "parameters.value", "losses": "loss[1]", "step_grads": "gradients[1].embedding"}
    assert differences(run, other) == (f"{found[where]} differs",)


def test_other_keys_are_a_difference(batches: list[tuple[str, TrainExample[Array]]]) -> None:
    swapped = [batches[1], batches[0], *batches[2:]]
    assert differences(trained(batches), trained(swapped))[0].startswith("keys: ")


def test_one_bit_in_any_leaf_is_a_difference(batches: list[tuple[str, TrainExample[Array]]]) -> None:
    _, example = batches[0]
    for field in dataclasses.fields(example):
        leaf = getattr(example, field.name)
        if isinstance(leaf, np.ndarray) and leaf.size:
            change: dict[str, Any] = {field.name: one_bit_off(leaf)}
            other = dataclasses.replace(example, **change)
            run, changed = trained([]), trained([])
            for each, seen in ((run, example), (changed, other)):
                each.record.keys.append("k")
                each.record.digests.append(leaf_digests(seen))
            (difference,) = differences(run, changed)
            assert difference.startswith(f"k {field.name}: ")


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_ids": np.zeros((2, 0), np.int32)},
        {"prompt_mask": np.zeros((1, 0), np.float64)},
        {"num_segments": 0},
        {"old_values": np.zeros(0, np.float32)},
        {"metadata": {}},
        {"sampler_agreement_applied": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_shape_dtype_and_static_values_are_part_of_a_digest(
    batches: list[tuple[str, TrainExample[Array]]], change: dict[str, Any]
) -> None:
    _, example = batches[0]
    (name,) = change
    assert leaf_digests(dataclasses.replace(example, **change))[name] != leaf_digests(example)[name]


def test_digests_are_the_same_on_the_device(batches: list[tuple[str, TrainExample[Array]]]) -> None:
    _, example = batches[0]
    arrays = {name: getattr(example, name) for name in leaf_digests(example) if name not in STATIC_FIELDS}
    on_device: dict[str, Any] = {name: jnp.array(array) for name, array in arrays.items()}
    assert leaf_digests(dataclasses.replace(example, **on_device)) == leaf_digests(example)
