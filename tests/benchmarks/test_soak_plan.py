"""The soak's plan and its micro-batches: both follow from the seed, and have all that they should."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from forebay.benchmarks.soak_faults import (
    ADVANCE,
    CUT,
    FAULTS,
    KILL,
    LEASE_S,
    MAX_VERSIONS_BEHIND,
    RESET,
    STOP,
    STRANGER,
    chosen,
    plan,
)
from forebay.benchmarks.soak_payload import MAX_BODY_BYTES, SoakExample, digest, freshness, micro_batch
from forebay.benchmarks.soak_result import SoakSettings
from forebay.wire import Limits, SettingError, default_registry, describe, flatten

# The plan.


def test_a_plan_follows_from_its_seed() -> None:
    assert plan(7, 180, tuple(FAULTS)) == plan(7, 180, tuple(FAULTS))
    assert plan(7, 180, tuple(FAULTS)) != plan(8, 180, tuple(FAULTS))


@pytest.mark.parametrize("seed", range(20))
def test_three_minutes_have_sixty_kills_stalls_and_cuts(seed: int) -> None:
    faults = plan(seed, 180, tuple(FAULTS))
    assert sum(fault.kind in (KILL, STOP, CUT) for fault in faults) >= 60
    assert {fault.kind for fault in faults} <= set(FAULTS)


@pytest.mark.parametrize("seed", range(20))
def test_three_minutes_have_resets_strangers_and_versions_that_grow_but_for_a_reset(seed: int) -> None:
    faults = plan(seed, 180, tuple(FAULTS))
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert sum(fault.kind == RESET for fault in faults) >= 10
    assert sum(fault.kind == STRANGER for fault in faults) >= 10
    told = [fault for fault in faults if fault.kind in (RESET, ADVANCE)]
    for before, after in itertools.pairwise(told):
        if after.kind == ADVANCE:
            assert after.version == before.version + 1
        else:
            # A daemon that did not forget would take what comes next to be stale.
            assert after.version == max(0, before.version - MAX_VERSIONS_BEHIND - 1)


def test_what_comes_at_its_own_pace_changes_nothing_of_the_rest() -> None:
    violence = [kind for kind in FAULTS if kind not in (RESET, ADVANCE, STRANGER)]
    rest = [fault for fault in plan(3, 180, tuple(FAULTS)) if fault.kind in violence]
    assert rest == plan(3, 180, tuple(violence))


def test_the_plan_of_no_faults_is_empty() -> None:
    assert plan(3, 180, ()) == []


def test_what_is_stopped_outlasts_the_lease() -> None:
    stops = [fault for fault in plan(3, 600, (STOP,)) if fault.kind == STOP]
    assert stops
    assert all(fault.lasts_s > LEASE_S for fault in stops)


@pytest.mark.parametrize(
    ("words", "kinds"), [("all", tuple(FAULTS)), ("none", ()), ("kill", (KILL,)), ("cut, kill", (CUT, KILL))]
)
def test_faults_are_chosen_by_name(words: str, kinds: tuple[str, ...]) -> None:
    assert chosen(words) == kinds


@pytest.mark.parametrize("words", ["", "kill,maim"])
def test_an_unknown_fault_names_those_that_there_are(words: str) -> None:
    with pytest.raises(SettingError, match="limit all, none, or some of kill, term, stop"):
        SoakSettings(faults=words)


@pytest.mark.parametrize(
    ("name", "value"), [("minutes", 0.0), ("slots", 0), ("in_flight", 0), ("watchdog_s", 1.0)]
)
def test_a_wrong_setting_names_itself_and_its_range(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"setting {name}; got {value}; limit"):
        SoakSettings(**{name: value})


# Micro-batches.


def test_a_key_has_the_same_micro_batch_in_every_life() -> None:
    assert digest(micro_batch(1, "a")) == digest(micro_batch(1, "a"))
    assert len({digest(micro_batch(seed, key)) for seed in (1, 2) for key in ("a", "b")}) == 4


def test_some_keys_are_behind_and_some_expire_the_same_in_every_life() -> None:
    found = [freshness(1, str(number)) for number in range(400)]
    assert found == [freshness(1, str(number)) for number in range(400)]
    assert found != [freshness(2, str(number)) for number in range(400)]
    assert {behind for behind, _ in found} == {None, 0, 1, MAX_VERSIONS_BEHIND, MAX_VERSIONS_BEHIND + 1}
    expiries = [expires_s for _, expires_s in found if expires_s is not None]
    assert 20 < len(expiries) < 120
    assert min(expiries) < 0.05
    assert max(expiries) > 1


def test_micro_batches_come_eagerly_and_in_chunks_and_fit_a_slot() -> None:
    limits = Limits(max_micro_batch_bytes=MAX_BODY_BYTES)
    sizes, dtypes = [], set()
    for number in range(60):
        flat = flatten(micro_batch(0, str(number)), registry=default_registry, limits=limits)
        sizes.append(describe(flat, limits).payload_bytes)
        dtypes |= {str(array.dtype) for array in flat.arrays}
    assert min(sizes) < 64 << 10
    assert max(sizes) > 8 << 20
    assert len(dtypes) > 8


def test_a_digest_sees_bytes_dtype_shape_structure_and_static_values() -> None:
    tree = micro_batch(0, "a")
    example = tree["example"]
    changed = example.inputs.copy()
    changed[0, 0] += 1
    others = [
        tree | {"example": dataclasses.replace(example, inputs=changed)},
        tree | {"example": dataclasses.replace(example, inputs=example.inputs.view("int32"))},
        tree | {"example": dataclasses.replace(example, inputs=example.inputs.reshape(-1))},
        tree | {"example": dataclasses.replace(example, weight=2.0)},
        tree | {"odd": list(tree["odd"])},
        tree | {"more": None},
    ]
    assert isinstance(example, SoakExample)
    assert len({digest(other) for other in (tree, *others)}) == 1 + len(others)
