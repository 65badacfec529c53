"""Where each leaf goes: every form of shardings that a caller may give."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from forebay.trainer import JaxTransfer
from forebay.trainer.host_tree import HostTree, host_tree_of
from forebay.trainer.placement import Placement, Target
from forebay.wire import TreeError, TreeRegistry

from .engines import staged

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


def test_an_error_of_the_callers_function_is_told_with_the_path() -> None:
    def where(path: str, _: jax.ShapeDtypeStruct) -> Target:
        raise LookupError(path)

    with pytest.raises(TreeError, match=r"failed for leaf \['a'\]: LookupError: \['a'\]") as caught:
        place(where)
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_class_that_is_not_registered_here_is_an_error_that_names_the_path() -> None:
    with pytest.raises(TreeError, match=r"\['r'\] is of a class that is not registered here"):
        Placement({"r": Rollout(None, None)}, TreeRegistry()).targets(host_tree({"r": Rollout(A, 0)}))


@pytest.mark.parametrize("returned", [PartitionSpec("data"), "data", [ROWS]])
def test_a_function_that_returns_no_sharding_is_an_error_that_names_the_path(returned: Any) -> None:
    with pytest.raises(TreeError, match=r"\['b'\]\[1\]"):
        place(lambda path, _: returned if path == "['b'][1]" else None)


# --- a leaf that does not divide ---


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("replicated ")]


@pytest.mark.parametrize("shape", [(3,), (5, 2), (1, 4), ()])
@pytest.mark.parametrize("form", ["sharding", "prefix", "function"])
def test_a_leaf_that_does_not_divide_is_replicated(shape: tuple[int, ...], form: str) -> None:
    shardings = {"sharding": ROWS, "prefix": {"a": ROWS, "b": ROWS}, "function": lambda *_: ROWS}[form]
    tree = {"a": np.zeros(shape, np.float32), "b": A}
    assert place(shardings, tree) == [WHOLE, ROWS]


def test_what_is_replicated_stays_on_its_mesh_in_its_kind_of_memory() -> None:
    two_axes = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    asked = NamedSharding(two_axes, PartitionSpec("data", "model"), memory_kind="pinned_host")
    assert place(asked, np.zeros((4, 3), np.int8)) == [
        NamedSharding(two_axes, PartitionSpec(), memory_kind="pinned_host")
    ]
    assert place(asked, np.zeros((2, 2), np.int8)) == [asked]


def test_a_leaf_that_is_replicated_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    placement = Placement(ROWS, REGISTRY)
    odd = {"rows": np.zeros((3, 2), np.float32), "scalar": np.zeros((), np.float32), "fits": A}
    for _ in range(3):
        assert placement.targets(host_tree(odd)) == [WHOLE, WHOLE, ROWS]
    assert len(warnings_of(caplog)) == 2
    assert "leaf=['rows'] shape=(3, 2) not_divided_by=" in warnings_of(caplog)[0]
    assert "leaf=['scalar'] shape=() " in warnings_of(caplog)[1]
    placement.targets(host_tree({"rows": A}))
    placement.targets(host_tree({"another": np.zeros(1, np.float32)}))
    assert len(warnings_of(caplog)) == 3
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_leaf_that_divides_or_is_empty_is_not_replicated(caplog: pytest.LogCaptureFixture) -> None:
    for shape in ((2,), (4, 3), (0, 3)):
        assert place(ROWS, np.zeros(shape, np.float32)) == [ROWS]
    for target in (FIRST, SingleDeviceSharding(SECOND), WHOLE, None):
        assert place(target, np.zeros((), np.float32)) == [target]
    assert warnings_of(caplog) == []


def test_a_leaf_that_is_spread_over_processes_is_never_replicated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Each process has other rows of it. The sharding is one of this process, that says the contrary.
    monkeypatch.setattr(NamedSharding, "is_fully_addressable", False)
    assert place(ROWS, {"a": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}) == [ROWS, ROWS]
    assert warnings_of(caplog) == []


# --- where the step's function wants the leaves ---

FOUR = Mesh(np.array(jax.devices()), ("data",))
OVER_FOUR = NamedSharding(FOUR, PartitionSpec("data"))
COLUMNS = NamedSharding(FOUR, PartitionSpec(None, "data"))
ON_ALL = NamedSharding(FOUR, PartitionSpec())
WANTED = {"x": OVER_FOUR, "more": {"y": COLUMNS, "odd": ON_ALL}, "scalar": ON_ALL}
FORMS: dict[str, Any] = {
    "prefix": {"x": OVER_FOUR, "more": {"y": COLUMNS, "odd": OVER_FOUR}, "scalar": ON_ALL, "name": None},
    "function": lambda path, leaf: COLUMNS if path == "['more']['y']" else OVER_FOUR if leaf.ndim else ON_ALL,
    "function that leaves it to the placement": lambda path, _: COLUMNS if "'y'" in path else OVER_FOUR,
}


def micro_batch(number: int) -> dict[str, Any]:
    return {
        "x": np.full((8, 3), number, np.float32),
        "more": {"y": np.full((2, 4), number, np.float32), "odd": np.full((3,), number, np.float32)},
        "scalar": np.array(number, np.float32),
        "name": f"batch {number}",
    }


class GuardedEngine:
    """Runs a program that says where it wants its inputs, and forbids to move anything."""

    def __init__(self) -> None:
        self.program: Any = jax.jit(
            lambda batch: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(batch)), in_shardings=(WANTED,)
        )
        self.sums: list[jax.Array] = []

    def fwd_bwd(self, batch: Any, **_: Any) -> Any:
        leaves = {name: leaf for name, leaf in batch.items() if name != "name"}
        for (path, leaf), wanted in zip(
            jax.tree_util.tree_leaves_with_path(leaves), jax.tree.leaves(WANTED), strict=True
        ):
            assert leaf.sharding == wanted, path
            assert leaf.committed
        with jax.transfer_guard("disallow"):
            self.sums.append(self.program(leaves))
        return self.sums[-1]

    def update(self, **_: Any) -> None: ...


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_leaves_lie_exactly_where_the_steps_function_wants_them_however_they_came(mode: str, form: str) -> None:
    engine = GuardedEngine()
    with staged(engine, mode, transfer=JaxTransfer(FORMS[form])) as wrapped:
        for number in range(4):
            wrapped.stage_batch(micro_batch(number), key=str(number))
        wrapped.fwd_bwd(stage_key="0")
        wrapped.fwd_bwd(micro_batch(9))
        # Out of order: what waits on the device goes back to the host, and then there again.
        wrapped.fwd_bwd(stage_key="3")
        wrapped.fwd_bwd(micro_batch(1), stage_key="1")
        wrapped.fwd_bwd(micro_batch(8), stage_key="missing")
        wrapped.fwd_bwd()
    assert [float(total) for total in engine.sums] == [36 * number for number in (0, 9, 3, 1, 8, 2)]
    assert engine.program._cache_size() == 1, "compiled anew for a micro-batch that lay elsewhere"


def test_the_guard_of_these_tests_finds_a_leaf_that_has_to_be_moved() -> None:
    engine = GuardedEngine()
    transfer = JaxTransfer({**FORMS["prefix"], "x": ON_ALL})
    with staged(engine, transfer=transfer) as wrapped, pytest.raises(AssertionError, match="'x'"):
        wrapped.fwd_bwd(micro_batch(1))
    leaves = {name: leaf for name, leaf in micro_batch(1).items() if name != "name"}
    with jax.transfer_guard("disallow"), pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"):
        engine.program(leaves)


def test_leaves_without_a_sharding_go_to_the_default_device_uncommitted() -> None:
    # So that a program with its own in_shardings may still place them.
    transfer = JaxTransfer()
    placed = transfer.place(transfer.take_apart({"x": A}))
    (array,) = transfer.issue(placed)
    assert array.devices() == {jax.devices()[0]}
    assert array.committed == jax.device_put(A).committed
