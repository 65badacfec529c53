"""The demonstration's micro-batches are those that Forebay is for, and the same in every process."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from forebay.demo.batches import key_of, micro_batches
from forebay.demo.digests import leaf_digests
from forebay.demo.micro_batch import TrainExample
from forebay.demo.settings import (
    EXPERTS_PER_TOKEN,
    LAYERS,
    ROW_BYTES,
    ROW_TOKENS,
    SEGMENT_ALIGNMENT,
    DemoSettings,
)
from forebay.wire import MIB, Array, Limits, default_registry, describe, flatten

SMALL = DemoSettings(steps=2, micro_batches=2, payload_mib=3)

DIGESTS_PROGRAM = """
import sys
from forebay.demo.batches import micro_batches
from forebay.demo.digests import leaf_digests
from forebay.demo.settings import decode_settings
for key, example in micro_batches(decode_settings(sys.argv[1])):
    print(key, leaf_digests(example))
"""


@pytest.fixture(scope="module")
def examples() -> dict[str, TrainExample[Array]]:
    return dict(micro_batches(SMALL))


@pytest.fixture(scope="module")
def example(examples: dict[str, TrainExample[Array]]) -> TrainExample[Array]:
    return examples[key_of(0, 0)]


def arrays_of(example: TrainExample[Array]) -> dict[str, Array]:
    values = {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def segments_of(example: TrainExample[Array]) -> list[tuple[int, int, int]]:
    """Row, first token and end of each segment, found from the ids alone."""
    found = []
    for row, ids in enumerate(example.segment_ids):
        for number in range(1, ids.max() + 1):
            places = np.flatnonzero(ids == number)
            found.append((row, int(places[0]), int(places[-1]) + 1))
    return found


def test_leaves_have_the_workloads_dtypes_and_shapes(example: TrainExample[Array]) -> None:
    rows = SMALL.rows
    wide = (rows, ROW_TOKENS)
    floats = ("completion_mask", "advantages", "old_per_token_logps", "ref_per_token_logps")
    expected = {
        "prompt_ids": ("int32", (rows, 0)),
        "prompt_mask": ("float32", (rows, 0)),
        **dict.fromkeys(("completion_ids", "segment_ids", "segment_positions"), ("int32", wide)),
        **dict.fromkeys((*floats, "sampler_is_weights", "returns"), ("float32", wide)),
        "routed_experts": ("int16", (*wide, LAYERS, EXPERTS_PER_TOKEN)),
    }
    assert {name: (str(leaf.dtype), leaf.shape) for name, leaf in arrays_of(example).items()} == expected
    assert example.old_values is None
    assert isinstance(example.num_segments, int)
    assert isinstance(example.sampler_agreement_applied, bool)


def test_there_are_as_many_trajectory_ids_as_segments(example: TrainExample[Array]) -> None:
    names = example.metadata["trajectory_ids"]
    assert isinstance(names, tuple)
    assert len(set(names)) == len(names) == example.num_segments == len(segments_of(example))


def test_policy_version_is_the_step(examples: dict[str, TrainExample[Array]]) -> None:
    assert [each.metadata["policy_version"] for each in examples.values()] == [0, 0, 1, 1]


def test_segments_start_at_multiples_of_64_and_do_not_break(example: TrainExample[Array]) -> None:
    for row, start, end in segments_of(example):
        assert start % SEGMENT_ALIGNMENT == 0
        assert (example.segment_ids[row, start:end] == example.segment_ids[row, start]).all()
        assert (example.segment_positions[row, start:end] == np.arange(end - start)).all()


def test_rows_are_filled_to_at_least_55_percent(examples: dict[str, TrainExample[Array]]) -> None:
    fill = np.concatenate([(each.segment_ids > 0).mean(axis=1) for each in examples.values()])
    assert fill.min() >= 0.55


def test_fill_reaches_from_near_55_to_near_100_percent() -> None:
    _, large = next(micro_batches(DemoSettings(steps=1, micro_batches=1, payload_mib=64)))
    fill = (large.segment_ids > 0).mean(axis=1)
    assert fill.min() < 0.65
    assert fill.max() > 0.95


def test_nothing_but_zero_lies_at_padding(example: TrainExample[Array]) -> None:
    padding = example.segment_ids == 0
    assert padding.any()
    for name, leaf in arrays_of(example).items():
        if name != "routed_experts" and leaf.size:
            assert not leaf[padding].any(), name


def test_routing_is_unset_at_padding_and_at_last_tokens_and_nowhere_else(example: TrainExample[Array]) -> None:
    unset = example.segment_ids == 0
    for row, _, end in segments_of(example):
        unset[row, end - 1] = True
    assert example.routed_experts is not None
    assert (example.routed_experts[unset] == -1).all()
    assert (example.routed_experts[~unset] >= 0).all()
    assert example.routed_experts.max() < 512


def test_a_token_goes_to_different_experts(example: TrainExample[Array]) -> None:
    assert example.routed_experts is not None
    routed = example.routed_experts[example.routed_experts[:, :, 0, 0] >= 0]
    ordered = np.sort(routed, axis=-1)
    assert (ordered[..., 1:] > ordered[..., :-1]).all()


def test_first_token_of_a_trajectory_is_never_trained(example: TrainExample[Array]) -> None:
    starts = (example.segment_ids > 0) & (example.segment_positions == 0)
    assert not example.completion_mask[starts].any()
    assert example.completion_mask.any()


def test_advantages_are_one_value_a_trajectory_and_standard(example: TrainExample[Array]) -> None:
    firsts = []
    for row, start, end in segments_of(example):
        assert (example.advantages[row, start:end] == example.advantages[row, start]).all()
        firsts.append(example.advantages[row, start])
    assert abs(float(np.mean(firsts))) < 1e-6
    assert abs(float(np.std(firsts)) - 1) < 1e-5


@pytest.mark.parametrize("payload_mib", [0.01, 0.5, 1, 3, 16])
def test_payload_is_at_least_what_was_asked_and_less_than_a_row_more(payload_mib: float) -> None:
    settings = DemoSettings(steps=1, micro_batches=1, payload_mib=payload_mib)
    _, example = next(micro_batches(settings))
    payload_bytes = sum(leaf.nbytes for leaf in arrays_of(example).values())
    assert payload_bytes == settings.rows * ROW_BYTES
    assert 0 <= payload_bytes - payload_mib * MIB < ROW_BYTES


def test_routed_experts_hold_97_percent_of_the_bytes(example: TrainExample[Array]) -> None:
    assert example.routed_experts is not None
    payload_bytes = sum(leaf.nbytes for leaf in arrays_of(example).values())
    assert example.routed_experts.nbytes / payload_bytes > 0.97


def test_micro_batch_can_travel(example: TrainExample[Array]) -> None:
    flat = flatten(example, registry=default_registry, limits=Limits())
    assert describe(flat, Limits()).encode(Limits())


def test_keys_are_distinct_and_in_order(examples: dict[str, TrainExample[Array]]) -> None:
    assert list(examples) == [key_of(0, 0), key_of(0, 1), key_of(1, 0), key_of(1, 1)]
    assert sorted(examples) == list(examples)


def test_no_two_micro_batches_are_alike(examples: dict[str, TrainExample[Array]]) -> None:
    ids = {leaf_digests(each)["completion_ids"] for each in examples.values()}
    assert len(ids) == len(examples)


def test_another_process_makes_the_same_bytes_whatever_its_hash_seed_and_threads() -> None:
    expected = [f"{key} {leaf_digests(example)}" for key, example in micro_batches(SMALL)]
    for hash_seed, threads in (("1", "1"), ("2", "2")):
        environment = {"PYTHONHASHSEED": hash_seed, "OPENBLAS_NUM_THREADS": threads}
        other = subprocess.run(
            [sys.executable, "-c", DIGESTS_PROGRAM, SMALL.encode()],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        assert other.stdout.splitlines() == expected


def test_another_seed_gives_other_batches() -> None:
    one, other = (leaf_digests(next(micro_batches(DemoSettings(payload_mib=1, seed=seed)))[1]) for seed in (0, 1))
    assert one["advantages"] != other["advantages"]
    assert one["routed_experts"] != other["routed_experts"]
