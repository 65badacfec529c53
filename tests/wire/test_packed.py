"""Small trees inside of a message: whatever a micro-batch may hold, and nothing that lies about its size."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire import DTYPES, Limits, PackedTree, TreeError, TreeRegistry, pack, unpack

from .trees import LIMITS, REGISTRY, Rollout, assert_same, random_array, trees


def travel(tree: Any, limits: Limits = LIMITS) -> Any:
    packed = pack(tree, registry=REGISTRY, limits=limits)
    frame = msgspec.msgpack.encode(packed)
    return unpack(msgspec.msgpack.decode(frame, type=PackedTree), registry=REGISTRY, limits=limits)


# --- there and back ---


@given(trees)
def test_every_tree_comes_back_bit_for_bit(tree: Any) -> None:
    assert_same(travel(tree), tree)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 4)])
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back_in_every_shape(name: str, shape: tuple[int, ...]) -> None:
    array = random_array(DTYPES[name], shape, seed=len(name))
    assert_same(travel(array), array)
    assert_same(travel([array, "between", array]), [array, "between", array])


@pytest.mark.parametrize(
    "tree", [None, 1, "text", (), [], {}, (1, (2.5, ("x", None, True))), {"a": {"b": (1, 2)}}]
)
def test_trees_without_arrays_take_no_body(tree: Any) -> None:
    packed = pack(tree, registry=REGISTRY, limits=LIMITS)
    assert packed.body == b""
    assert_same(travel(tree), tree)


@pytest.mark.parametrize("sizes", [(0,), (0, 0), (3, 0), (0, 3), (64, 0), (64, 1), (63, 2, 0)])
def test_leaves_of_no_size_come_back_wherever_they_stand(sizes: tuple[int, ...]) -> None:
    tree = [np.arange(size, dtype=np.uint8) for size in sizes]
    assert_same(travel(tree), tree)


def test_what_is_unpacked_is_private_and_can_be_written() -> None:
    packed = pack({"x": np.arange(4)}, registry=REGISTRY, limits=LIMITS)
    one, other = (unpack(packed, registry=REGISTRY, limits=LIMITS) for _ in range(2))
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    one["x"][:] = 9
    assert_same(other["x"], np.arange(4))
    assert_same(unpack(packed, registry=REGISTRY, limits=LIMITS), {"x": np.arange(4)})


def test_what_is_packed_may_be_changed_afterwards() -> None:
    array = np.arange(4)
    packed = pack(array, registry=REGISTRY, limits=LIMITS)
    array[:] = 9
    assert_same(unpack(packed, registry=REGISTRY, limits=LIMITS), np.arange(4))


def test_its_size_is_what_it_takes_in_a_message() -> None:
    packed = pack({"x": np.zeros(100, np.uint8), "y": np.zeros(1, np.uint8)}, registry=REGISTRY, limits=LIMITS)
    assert len(packed.body) == 129
    assert packed.nbytes == len(packed.manifest) + 129


# --- what does not travel ---


@pytest.mark.parametrize("leaf", [{1, 2}, b"x", 1j, object(), np.array(["a"]), 1 << 64, "\ud800"])
def test_what_cannot_travel_is_an_error_that_names_its_path(leaf: Any) -> None:
    with pytest.raises(TreeError, match=r"\['a'\]\[1\]"):
        pack({"a": [1, leaf]}, registry=REGISTRY, limits=LIMITS)


def test_a_class_of_the_other_side_is_an_error() -> None:
    packed = pack(Rollout(1, 2), registry=REGISTRY, limits=LIMITS)
    with pytest.raises(TreeError, match="not registered here"):
        unpack(packed, registry=TreeRegistry(), limits=LIMITS)


@pytest.mark.parametrize("tree", [np.zeros(1001, np.uint8), [np.zeros(500, np.uint8), np.zeros(500, np.uint8)]])
def test_a_tree_over_the_limit_is_an_error_on_both_sides(tree: Any) -> None:
    small = Limits(chunk_bytes=256, max_micro_batch_bytes=1000)
    with pytest.raises(TreeError, match="larger than slot_max_bytes allows"):
        pack(tree, registry=REGISTRY, limits=small)
    packed = pack(tree, registry=REGISTRY, limits=LIMITS)
    with pytest.raises(TreeError, match="larger than slot_max_bytes allows"):
        unpack(packed, registry=REGISTRY, limits=small)


def test_a_long_manifest_is_an_error_on_both_sides() -> None:
    small = Limits(chunk_bytes=256, max_manifest_bytes=100)
    with pytest.raises(TreeError, match="manifest is too large"):
        pack("x" * 200, registry=REGISTRY, limits=small)
    packed = pack("x" * 200, registry=REGISTRY, limits=LIMITS)
    with pytest.raises(TreeError, match="manifest is too large"):
        unpack(packed, registry=REGISTRY, limits=small)


# --- what lies about itself ---


def manifest_of(leaves: list[Any], structure: Any = None) -> bytes:
    """Encodes a manifest of any leaves, whether they are possible or not."""
    nodes = [["a"]] * len(leaves)
    return msgspec.msgpack.encode([structure or ["l", nodes], leaves])


HUGE = 1 << 40
HOSTILE: dict[str, PackedTree] = {
    "a body that is missing": PackedTree(manifest_of([["uint8", [HUGE], "raw", HUGE]]), b""),
    "a body that is too short": PackedTree(manifest_of([["uint8", [10], "raw", 10]]), bytes(9)),
    "a body that is too long": PackedTree(manifest_of([["uint8", [10], "raw", 10]]), bytes(11)),
    "a body without leaves": PackedTree(manifest_of([]), b"x"),
    "a shape that is larger than its bytes": PackedTree(manifest_of([["uint8", [HUGE], "raw", 8]]), bytes(8)),
    "a shape that overflows": PackedTree(manifest_of([["uint8", [1 << 32, 1 << 32, 0], "raw", 0]]), b""),
    "a shape that wraps": PackedTree(manifest_of([["uint8", [1 << 63, 2], "raw", 0]]), b""),
    "a shape below zero": PackedTree(manifest_of([["uint8", [-8], "raw", -8]]), bytes(8)),
    "many dimensions": PackedTree(manifest_of([["uint8", [1] * 65, "raw", 1]]), b"x"),
    "an unknown dtype": PackedTree(manifest_of([["object", [1], "raw", 8]]), bytes(8)),
    "an unknown codec": PackedTree(manifest_of([["uint8", [1], "pickle", 1]]), b"x"),
    "leaves without a place": PackedTree(manifest_of([["uint8", [1], "raw", 1]], ["l", []]), b"x"),
    "places without leaves": PackedTree(manifest_of([], ["l", [["a"], ["a"]]]), b""),
    "deep nesting": PackedTree(b"\x92" + b"\x92\xa1l\x91" * 100 + b"\x91\xa1a" + b"\x90", b""),
    "very deep nesting": PackedTree(b"\x91" * 100_000, b""),
    "a static object": PackedTree(manifest_of([], ["s", {"a": 1}]), b""),
    "no manifest": PackedTree(b"", b""),
    "garbage": PackedTree(b"\xff\x00garbage", b"more"),
    "a declared length": PackedTree(b"\xdd\xff\xff\xff\xff", b""),
    "another type": PackedTree(msgspec.msgpack.encode({"structure": ["a"]}), b""),
}


@pytest.mark.parametrize("packed", HOSTILE.values(), ids=HOSTILE)
def test_a_tree_that_lies_about_itself_is_refused_before_anything_is_allocated(packed: PackedTree) -> None:
    def refused() -> None:
        with pytest.raises(TreeError):
            unpack(packed, registry=REGISTRY, limits=LIMITS)

    refused()
    tracemalloc.start()
    try:
        refused()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 << 20


@given(trees, st.data())
def test_a_damaged_tree_is_refused_or_is_some_tree(tree: Any, data: st.DataObject) -> None:
    packed = pack(tree, registry=REGISTRY, limits=LIMITS)
    manifest, body = bytearray(packed.manifest), bytearray(packed.body)
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from([manifest, body]))
        start = data.draw(st.integers(0, len(part)))
        part[start : start + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        got = unpack(PackedTree(bytes(manifest), bytes(body)), registry=REGISTRY, limits=LIMITS)
    except TreeError:
        return
    assert_same(travel(got), got)


def test_a_packed_tree_cannot_be_changed_once_made() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        PackedTree(b"", b"").body = b"x"  # type: ignore[misc]
