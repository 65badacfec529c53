"""Where each leaf goes: every form of shardings that a caller may give."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from forebay.trainer.host_tree import HostTree, host_tree_of
from forebay.trainer.placement import Placement, Target
from forebay.wire import TreeError, TreeRegistry

REGISTRY = TreeRegistry()
FIRST, SECOND = jax.devices()[:2]
ROWS = NamedSharding(Mesh(np.array([FIRST, SECOND]), ("data",)), PartitionSpec("data"))
WHOLE = NamedSharding(ROWS.mesh, PartitionSpec())
A = np.zeros((4, 2), np.float32)


@REGISTRY.register
@dataclasses.dataclass
class Rollout:
    tokens: Any
    reward: Any


@REGISTRY.register
class Pair(NamedTuple):
    left: Any
    right: Any


TREE = {"a": A, "b": [A, A], "c": (A, {"d": A}), 7: Rollout(A, 1.5), "p": Pair(A, A), "static": ("x", None)}
PATHS = ("['a']", "['b'][0]", "['b'][1]", "['c'][0]", "['c'][1]['d']", "[7].tokens", "['p'].left", "['p'].right")


def host_tree(tree: Any) -> HostTree:
    return host_tree_of(tree, REGISTRY)


def place(shardings: Any, tree: Any = TREE) -> list[Target]:
    return Placement(shardings, REGISTRY).targets(host_tree(tree))


def test_the_paths_are_those_of_the_tree() -> None:
    assert host_tree(TREE).paths == PATHS


@pytest.mark.parametrize("target", [None, FIRST, SECOND, ROWS, SingleDeviceSharding(SECOND)])
def test_one_target_is_for_every_leaf(target: Target) -> None:
    assert place(target) == [target] * 8


def test_a_function_is_asked_for_each_leaf_with_its_path_and_array() -> None:
    asked: list[tuple[str, tuple[int, ...]]] = []

    def where(path: str, leaf: jax.ShapeDtypeStruct) -> Target:
        assert leaf.dtype == np.float32
        asked.append((path, leaf.shape))
        return ROWS if path == "['b'][1]" else None

    assert place(where) == [None, None, ROWS, None, None, None, None, None]
    assert asked == [(path, (4, 2)) for path in PATHS]


def test_a_prefix_of_a_dict_covers_what_lies_below() -> None:
    prefix = {"a": ROWS, "b": WHOLE, "c": FIRST, 7: None, "p": SECOND, "static": None}
    assert place(prefix) == [ROWS, WHOLE, WHOLE, FIRST, FIRST, None, SECOND, SECOND]


def test_a_prefix_may_go_down_to_the_leaves_in_every_kind_of_container() -> None:
    prefix = {
        "a": ROWS,
        "b": [FIRST, SECOND],
        "c": (WHOLE, {"d": ROWS}),
        7: Rollout(SECOND, "whatever stands where a static value is"),
        "p": Pair(FIRST, None),
        "static": None,
    }
    assert place(prefix) == [ROWS, FIRST, SECOND, WHOLE, ROWS, SECOND, FIRST, None]


def test_a_prefix_needs_nothing_where_a_static_value_is() -> None:
    prefix = {"a": ROWS, "b": WHOLE, "c": FIRST, 7: {}, "p": SECOND}
    with pytest.raises(TreeError, match=r"\[7\]"):
        place(prefix)
    assert place({**prefix, 7: None}) == [ROWS, WHOLE, WHOLE, FIRST, FIRST, None, SECOND, SECOND]


def test_the_order_of_a_prefixs_keys_does_not_matter() -> None:
    assert place({"b": SECOND, "a": FIRST}, {"a": A, "b": A}) == [FIRST, SECOND]


def test_a_micro_batch_may_be_one_leaf() -> None:
    assert place(ROWS, A) == [ROWS]
    with pytest.raises(TreeError, match="no sharding at leaf <root>"):
        place({"a": ROWS}, A)


@pytest.mark.parametrize(
    ("prefix", "path", "got"),
    [
        ({"a": ROWS}, "<root>", "['7', 'b', 'c', 'p'] missing, [] too many"),
        ({**dict.fromkeys(TREE, None), "extra": None}, "<root>", "[] missing, ['extra'] too many"),
        ([None] * 6, "<root>", "list"),
        ((None,) * 6, "<root>", "tuple"),
        ("data", "<root>", "str"),
        ({**dict.fromkeys(TREE, None), "a": {"x": ROWS}}, "['a']", "dict"),
        ({**dict.fromkeys(TREE, None), "a": "data"}, "['a']", "str"),
        ({**dict.fromkeys(TREE, None), "b": [ROWS]}, "['b']", "list"),
        ({**dict.fromkeys(TREE, None), "b": (ROWS, ROWS)}, "['b']", "tuple"),
        ({**dict.fromkeys(TREE, None), "c": [ROWS, ROWS]}, "['c']", "list"),
        ({**dict.fromkeys(TREE, None), "c": (ROWS,)}, "['c']", "tuple"),
        ({**dict.fromkeys(TREE, None), "c": (ROWS,) * 3}, "['c']", "tuple"),
        ({**dict.fromkeys(TREE, None), "c": Pair(ROWS, ROWS)}, "['c']", "Pair"),
        ({**dict.fromkeys(TREE, None), "c": (ROWS, {"e": ROWS})}, "['c'][1]", "['d'] missing, ['e'] too many"),
        ({**dict.fromkeys(TREE, None), 7: {"tokens": ROWS, "reward": None}}, "[7]", "dict"),
        ({**dict.fromkeys(TREE, None), 7: Pair(ROWS, ROWS)}, "[7]", "Pair"),
        ({**dict.fromkeys(TREE, None), "p": (ROWS, ROWS)}, "['p']", "tuple"),
    ],
)
def test_a_prefix_that_does_not_fit_is_an_error_that_names_the_path(prefix: Any, path: str, got: str) -> None:
    with pytest.raises(TreeError) as caught:
        place(prefix)
    assert f" {path};" in str(caught.value)
    assert caught.value.got == got


def test_a_partition_spec_alone_is_no_sharding() -> None:
    with pytest.raises(TreeError, match="do not fit the micro-batch at <root>"):
        place(PartitionSpec("data"))


def test_an_error_of_the_callers_function_reaches_the_caller() -> None:
    def where(path: str, _: jax.ShapeDtypeStruct) -> Target:
        raise LookupError(path)

    with pytest.raises(LookupError, match=r"\['a'\]"):
        place(where)


def test_a_class_that_is_not_registered_here_is_an_error_that_names_the_path() -> None:
    with pytest.raises(TreeError, match=r"\['r'\] is of a class that is not registered here"):
        Placement({"r": Rollout(None, None)}, TreeRegistry()).targets(host_tree({"r": Rollout(A, 0)}))
