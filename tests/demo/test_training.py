"""A run's record is what was trained, and comparing two runs misses no bit."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
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
from forebay.demo.training import TrainingRun, compile_step, differences, measure_compute
from forebay.wire import Array, ProtocolError

STATIC_FIELDS = ("old_values", "num_segments", "metadata", "sampler_agreement_applied")
SETTINGS = DemoSettings(steps=2, micro_batches=2, payload_mib=0.5)
Batches = list[TrainExample[Array]]


@pytest.fixture(scope="module")
def helper() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture(scope="module")
def batches() -> Batches:
    return [example for _, example in micro_batches(SETTINGS)]


def trained(batches: Batches, helper: Executor) -> TrainingRun:
    run = TrainingRun(init_params(0), helper)
    for number, example in enumerate(batches, 1):
        run.fwd_bwd(example)
        if number % SETTINGS.micro_batches == 0:
            run.update()
    return run


def one_bit_off(array: Any) -> Any:
    changed = np.array(array)
    changed.reshape(-1).view(np.uint8)[-1] ^= 1
    return changed


def test_two_runs_on_the_same_batches_are_the_same(batches: Batches, helper: Executor) -> None:
    assert differences(trained(batches, helper), trained(batches, helper)) == ()


def test_a_steps_gradients_are_summed_and_its_update_is_their_mean(batches: Batches, helper: Executor) -> None:
    params = init_params(0)
    (_, one), (_, other) = (loss_and_grads(params, rows_of(example)) for example in batches[:2])
    total = jax.tree.map(jnp.add, one, other)
    run = trained(batches[:2], helper)
    assert len(run.record.step_grads) == 1
    for left, right in zip(jax.tree.leaves(run.record.step_grads[0]), jax.tree.leaves(total), strict=True):
        assert (left == right).all()
    for left, right in zip(jax.tree.leaves(run.params), jax.tree.leaves(updated(params, total, 2)), strict=True):
        assert (left == right).all()


def test_parameters_stay_until_the_update(batches: Batches, helper: Executor) -> None:
    run = trained(batches[:3], helper)
    after_one_step = trained(batches[:2], helper)
    assert len(run.record.step_grads) == 1
    assert len(run.record.losses) == 3
    for left, right in zip(jax.tree.leaves(run.params), jax.tree.leaves(after_one_step.params), strict=True):
        assert (left == right).all()


def test_update_without_a_micro_batch_changes_nothing(batches: Batches, helper: Executor) -> None:
    run = trained(batches[:2], helper)
    params = run.params
    with pytest.raises(ProtocolError, match="without a micro-batch"):
        run.update()
    assert run.params is params
    assert len(run.record.step_grads) == 1


def test_what_is_no_example_is_refused_and_leaves_no_trace(helper: Executor) -> None:
    run = trained([], helper)
    something_else: Any = {"tokens": np.zeros(3)}
    with pytest.raises(ProtocolError, match="no TrainExample; got dict"):
        run.fwd_bwd(something_else)
    assert run.record.losses == run.record.digests == []


def test_compiling_ahead_leaves_nothing_to_compile(helper: Executor) -> None:
    # Of a shape that no other test uses: else it would be compiled already.
    _, example = next(micro_batches(DemoSettings(payload_mib=2.5)))
    rows, params = rows_of(example), init_params(0)
    on_device: dict[str, Any] = {field: jnp.array(leaf) for field, leaf in rows._asdict().items()}
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event and duration_secs:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert compile_step(params, rows) > 0
        assert compiled
        compiled.clear()
        run = TrainingRun(params, helper)
        for each in (example, dataclasses.replace(example, **on_device)):
            run.fwd_bwd(each)
        jax.block_until_ready(run.update())
        assert compiled == []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_measured_compute_is_a_time(batches: Batches) -> None:
    assert 0 < measure_compute(init_params(0), rows_of(batches[0])) < float("inf")


@pytest.mark.parametrize("where", ["losses", "step_grads", "params"])
def test_one_bit_in_what_came_out_is_a_difference(batches: Batches, helper: Executor, where: str) -> None:
    run, other = trained(batches, helper), trained(batches, helper)
    if where == "params":
        other.params = other.params._replace(value=one_bit_off(other.params.value))
    elif where == "losses":
        other.record.losses[1] = one_bit_off(other.record.losses[1])
    else:
        grads = other.record.step_grads[1]
        other.record.step_grads[1] = grads._replace(embedding=one_bit_off(grads.embedding))
    found = {"params": "parameters.value", "losses": "loss[1]", "step_grads": "gradients[1].embedding"}
    assert differences(run, other) == (f"{found[where]} differs",)


def test_another_order_is_a_difference(batches: Batches, helper: Executor) -> None:
    swapped = [batches[1], batches[0], *batches[2:]]
    assert differences(trained(batches, helper), trained(swapped, helper))[0].startswith("micro-batch 0 ")


def test_another_number_of_micro_batches_is_a_difference(batches: Batches, helper: Executor) -> None:
    found = differences(trained(batches, helper), trained(batches[:3], helper))
    assert found == ("micro-batches and steps: (4, 2) against (3, 1)",)


def test_one_bit_in_any_leaf_is_a_difference(batches: Batches, helper: Executor) -> None:
    example = batches[0]
    for field in dataclasses.fields(example):
        leaf = getattr(example, field.name)
        if isinstance(leaf, np.ndarray) and leaf.size:
            change: dict[str, Any] = {field.name: one_bit_off(leaf)}
            other = dataclasses.replace(example, **change)
            run, changed = trained([], helper), trained([], helper)
            for each, seen in ((run, example), (changed, other)):
                each.record.digests.append(helper.submit(leaf_digests, seen))
            (difference,) = differences(run, changed)
            assert difference.startswith(f"micro-batch 0 {field.name}: ")


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
def test_shape_dtype_and_static_values_are_part_of_a_digest(batches: Batches, change: dict[str, Any]) -> None:
    example = batches[0]
    (name,) = change
    assert leaf_digests(dataclasses.replace(example, **change))[name] != leaf_digests(example)[name]


def test_digests_are_the_same_on_the_device(batches: Batches) -> None:
    example = batches[0]
    arrays = {name: getattr(example, name) for name in leaf_digests(example) if name not in STATIC_FIELDS}
    on_device: dict[str, Any] = {name: jnp.array(array) for name, array in arrays.items()}
    assert leaf_digests(dataclasses.replace(example, **on_device)) == leaf_digests(example)
