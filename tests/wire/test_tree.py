from __future__ import annotations

import collections
import enum
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire import DTYPES, Array, Limits, TreeError, describe, dtype_name, dtype_of, flatten, unflatten

from .trees import (
    FORMS,
    LIMITS,
    REGISTRY,
    Empty,
    FlaxBatch,
    Frozen,
    Rollout,
    Sample,
    assert_same,
    big_endian,
    random_array,
    travel,
    trees,
)


def flat_arrays(tree: Any, limits: Limits = LIMITS) -> tuple[Array, ...]:
    return flatten(tree, registry=REGISTRY, limits=limits).arrays


def all_patterns(dtype: np.dtype[Any]) -> Array:
    """Returns every bit pattern of a dtype of one or two bytes, and a sample of the larger ones."""
    if dtype.itemsize <= 2:
        return np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype)
    words = [0, 1, 1 << 63, 1 << 31, (1 << 64) - 1, 0x7FF0000000000001, 0xFFF8DEADBEEF0001, 0x7FA00001FFA00001]
    special = np.array([*words, *words[::-1]], np.uint64).view(np.uint8)
    return np.concatenate([special, random_array(np.dtype(np.uint8), (16 * 1024,), seed=7)]).view(dtype)


# --- what travels arrives ---


@given(trees)
def test_every_tree_arrives_as_it_was_sent(tree: Any) -> None:
    assert_same(travel(tree), tree)


@given(trees)
def test_taking_a_tree_apart_leaves_the_callers_arrays_untouched(tree: Any) -> None:
    first = flatten(tree, registry=REGISTRY, limits=LIMITS)
    again = flatten(tree, registry=REGISTRY, limits=LIMITS)
    assert [array.tobytes() for array in first.arrays] == [array.tobytes() for array in again.arrays]
    assert len(set(first.paths)) == len(first.paths)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", DTYPES)
def test_every_bit_pattern_of_every_dtype_arrives_in_every_memory_form(name: str, form: Any) -> None:
    sent = form(all_patterns(DTYPES[name]).reshape(2, -1))
    got = travel({"leaf": sent}, Limits())["leaf"]
    assert got.dtype.name == name
    assert_same(got, sent)


@pytest.mark.parametrize("name", DTYPES)
def test_contiguous_bytes_are_never_changed_on_the_way(name: str) -> None:
    patterns = all_patterns(DTYPES[name])
    assert travel(patterns, Limits()).tobytes() == patterns.tobytes()


@pytest.mark.parametrize("name", [name for name in DTYPES if not name.startswith("bool")])
def test_big_endian_values_arrive_native_and_equal(name: str) -> None:
    values = np.array([1, 0, 1, 1], DTYPES[name])
    (native,) = flat_arrays(big_endian(values))
    assert native.dtype.isnative
    assert native.dtype == DTYPES[name]
    assert native.tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (4, 0), (0, 4), (1,), (1, 1, 1), (2, 0, 3), (1,) * 64])
@pytest.mark.parametrize("name", ["bool", "int4", "bfloat16", "complex128"])
def test_every_shape_arrives(name: str, shape: tuple[int, ...]) -> None:
    array = random_array(DTYPES[name], shape, seed=1)
    # A leaf before and one behind: an empty leaf must not shift them.
    assert_same(travel([np.arange(5), array, np.arange(3)]), [np.arange(5), array, np.arange(3)])


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_scalars_arrive_as_0d_arrays(name: str) -> None:
    scalar = all_patterns(DTYPES[name])[-1]
    got = travel({"scalar": scalar})["scalar"]
    assert_same(got, np.asarray(scalar))
    assert got.shape == ()


def test_contiguous_native_arrays_are_not_copied() -> None:
    array = np.arange(10.0)
    frozen = np.arange(10.0)
    frozen.flags.writeable = False
    for mine, taken in zip((array, frozen), flat_arrays([array, frozen]), strict=True):
        assert np.shares_memory(mine, taken)


def test_memory_mapped_arrays_travel(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(6).reshape(2, 3))
    mapped = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    got = travel(mapped)
    assert type(got) is np.ndarray
    assert got.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "static",
    [
        *(None, True, False, 0, 1, -1, 2**63, 2**64 - 1, -(2**63), "", "ключ\0", 0.0, -0.0),
        *(math.inf, -math.inf, math.nan, -math.nan, 5e-324, (), ("a", "b"), (("a",), (None, 1.5, ()))),
    ],
    ids=repr,
)
def test_static_values_keep_type_and_bits(static: object) -> None:
    assert_same(travel(static), static)
    assert_same(travel({"static": static, "leaf": np.zeros(1)})["static"], static)


@pytest.mark.parametrize("empty", [{}, [], (), Empty(), [[], ()], {"a": {}}, ([],)], ids=repr)
def test_empty_containers_keep_their_type(empty: object) -> None:
    assert_same(travel(empty), empty)


def test_dict_order_is_kept_and_int_keys_stay_apart_from_text() -> None:
    tree = {"b": np.int8(1), 1: np.int8(2), "a": np.int8(3), "1": np.int8(4), -5: np.int8(5)}
    assert list(travel(tree)) == ["b", 1, "a", "1", -5]
    assert [int(value) for value in travel(tree).values()] == [1, 2, 3, 4, 5]


def test_paths_are_spelled_as_jax_spells_them() -> None:
    leaf = np.zeros(1)
    tree = {
        "a": [leaf, (leaf, 1)],
        2: Sample(leaf, None),
        "it's": FlaxBatch(tokens={"x": leaf}, temperature=1.0),
    }
    paths = flatten(tree, registry=REGISTRY, limits=LIMITS).paths
    assert paths == ("['a'][0]", "['a'][1][0]", "[2].tokens", "[\"it's\"].tokens['x']")
    assert flatten(leaf, registry=REGISTRY, limits=LIMITS).paths == ("<root>",)


def test_leaves_may_be_any_objects_when_a_tree_is_put_together() -> None:
    structure = flatten([np.zeros(1), {"a": np.zeros(1)}], registry=REGISTRY, limits=LIMITS).structure
    assert unflatten(structure, ["one", None], registry=REGISTRY) == ["one", {"a": None}]


@given(st.sampled_from(sorted(DTYPES)))
def test_dtypes_travel_by_a_name_that_names_one_dtype(name: str) -> None:
    assert dtype_name(dtype_of(name, "x"), "x") == name
    assert [other for other, dtype in DTYPES.items() if dtype == DTYPES[name]] == [name]


# --- what cannot travel is refused, by path ---


class _JaxLike:
    """What a device array looks like to duck typing."""

    dtype = np.dtype(np.float32)
    shape = (2,)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise AssertionError("a device array must not be read back in secret")


class _Unregistered(collections.namedtuple("_Unregistered", "a")):
    __slots__ = ()


class _Color(enum.IntEnum):
    RED = 1


class _Words(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.array([None, {}], object), "object"),
        (np.zeros(2, "V4"), "V4"),
        (np.void(b"abcd"), "V4"),
        (np.zeros(2, [("a", "i4")]), "('a', '<i4')"),
        (np.array(["a"]), "<U1"),
        (np.array([b"a"]), "S1"),
        (np.str_("a"), "<U1"),
        (np.bytes_(b"a"), "S1"),
        (np.zeros(2, "M8[s]"), "datetime64[s]"),
        (np.zeros(2, "m8[ns]"), "timedelta64[ns]"),
        (np.array(["a"], np.dtypes.StringDType()), "StringDType"),
        (np.zeros(2, np.longdouble), np.dtype(np.longdouble).name),
        (np.zeros(2, np.clongdouble), np.dtype(np.clongdouble).name),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
        (np.zeros((1, 1)).view(np.matrix), "numpy.matrix"),
        (np.zeros(2).view(np.recarray), "numpy.rec.recarray"),
        (_Unregistered(1), "_Unregistered"),
        (_JaxLike(), "_JaxLike"),
        ({1, 2}, "set"),
        (frozenset(), "frozenset"),
        (b"bytes", "bytes"),
        (bytearray(b"bytes"), "bytearray"),
        (memoryview(b"bytes"), "memoryview"),
        (range(3), "range"),
        (1j, "complex"),
        (_Color.RED, "_Color"),
        (_Words("a"), "_Words"),
        (collections.OrderedDict(), "OrderedDict"),
        (collections.defaultdict(list), "defaultdict"),
        (object(), "object"),
        (np.float32, "type"),
        (Rollout, "type"),
        (len, "builtin_function_or_method"),
        ("\ud800", "\\ud800"),
        (2**64, "18446744073709551616"),
        (-(2**63) - 1, "-9223372036854775809"),
        pytest.param(10**5000, "int too long to show", id="5000 digits"),
        (("a", b"b"), "bytes"),
        (("a", {1}), "set"),
        (("a", 2**64), "18446744073709551616"),
        (("a", "\udfff"), "\\udfff"),
    ],
)
def test_what_cannot_travel_is_refused_by_path_value_and_limit(value: Any, got: str) -> None:
    with pytest.raises(TreeError) as caught:
        travel({"fine": np.zeros(1), "sick": [None, value]})
    message = str(caught.value)
    assert "['sick'][1]" in message
    assert got in message
    assert caught.value.limit is not None or "UTF-8" in message


@pytest.mark.parametrize(
    "key",
    [1.5, None, True, (1, 2), b"a", np.int64(1), _Color.RED, "\ud800", 2**64, -(10**5000)],
    ids=lambda key: type(key).__name__,
)
def test_dict_keys_other_than_text_and_64_bit_ints_are_refused(key: Any) -> None:
    with pytest.raises(TreeError, match=r"key of.*\['a'\]|\['a'\] has a key"):
        travel({"a": {key: np.zeros(1)}})


def nested(kind: str, levels: int) -> Any:
    tree: Any = np.zeros(1) if kind != "static tuple" else ()
    for _ in range(levels):
        tree = {"k": tree} if kind == "dict" else [tree] if kind == "list" else (tree,)
    return tree


@pytest.mark.parametrize("kind", ["dict", "list", "tuple", "static tuple"])
def test_depth_is_allowed_to_the_limit_and_refused_beyond_it(kind: str) -> None:
    limits = Limits(max_depth=8)
    assert_same(travel(nested(kind, 8), limits), nested(kind, 8))
    with pytest.raises(TreeError, match="too deep") as caught:
        travel(nested(kind, 9), limits)
    assert caught.value.limit == "8 levels"


@pytest.mark.parametrize("kind", ["dict", "list", "tuple", "static tuple"])
def test_nesting_far_beyond_pythons_own_recursion_limit_is_refused(kind: str) -> None:
    with pytest.raises(TreeError, match=r"too deep at \["):
        travel(nested(kind, 50_000))


def test_a_tree_that_holds_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(TreeError, match="too deep"):
        travel(tree)


def test_leaves_are_allowed_to_the_limit_and_refused_beyond_it() -> None:
    limits = Limits(max_leaves=3)
    assert len(travel([np.zeros(1)] * 3, limits)) == 3
    with pytest.raises(TreeError, match=r"too many arrays at \[3\].*3 leaves"):
        travel([np.zeros(1)] * 4, limits)


def test_path_lengths_are_allowed_to_the_limit_and_refused_beyond_it() -> None:
    # [''] is four characters.
    assert_same(travel({"k" * 1020: 1}), {"k" * 1020: 1})
    values: list[Any] = [1, np.zeros(1), []]
    for value in values:
        with pytest.raises(TreeError, match=r"too long.*1025 characters.*limit 1024"):
            travel({"k" * 1021: value})


def test_a_micro_batch_larger_than_a_slot_is_refused_by_its_largest_leaf() -> None:
    limits = Limits(max_micro_batch_bytes=1000)
    small, large = np.zeros(100, np.uint8), np.zeros(872, np.uint8)
    flat = flatten({"small": small, "large": large}, registry=REGISTRY, limits=limits)
    assert describe(flat, limits).payload_bytes == 972
    flat = flatten({"small": small, "large": np.zeros(873, np.uint8)}, registry=REGISTRY, limits=limits)
    with pytest.raises(TreeError, match=r"\['large'\] with 873 bytes.*got 1001 bytes; limit 1000 bytes"):
        describe(flat, limits)


@pytest.mark.parametrize("sizes", [[873], [500, 500]], ids=["one leaf", "all leaves"])
def test_the_name_that_a_receiver_gives_its_limit_cannot_drive_a_terminal(sizes: list[int]) -> None:
    limits = Limits(max_micro_batch_bytes=872, size_setting="\x1b[2J" + "x" * 10_000)
    with pytest.raises(TreeError, match=r"larger than \\x1b\[2Jx+\.\.\.x+ allows.*or raise \\x1b") as caught:
        describe(flatten([np.zeros(size, np.uint8) for size in sizes], registry=REGISTRY, limits=limits), limits)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_a_broadcast_array_larger_than_memory_is_refused_before_it_is_copied() -> None:
    huge = np.broadcast_to(np.zeros(()), (10**9, 10**4))
    with pytest.raises(TreeError, match=r"\['huge'\] is larger than slot_max_bytes allows.*80000000000000 bytes"):
        travel({"huge": huge})


def test_a_manifest_larger_than_its_limit_is_refused() -> None:
    limits = Limits(max_manifest_bytes=200)
    flat = flatten(["x" * 300], registry=REGISTRY, limits=limits)
    with pytest.raises(TreeError, match=r"too large.*limit 200 bytes"):
        describe(flat, limits).encode(limits)


def test_a_field_that_was_never_set_is_refused_by_path() -> None:
    rollout = Rollout.__new__(Rollout)
    rollout.tokens = np.zeros(1)
    with pytest.raises(TreeError, match=r"\['r'\]\.reward was never set"):
        travel({"r": rollout})


def test_a_refused_tree_is_left_as_it_was() -> None:
    tokens = np.arange(4)
    tree = {"tokens": tokens, "sick": object()}
    with pytest.raises(TreeError):
        travel(tree)
    assert list(tree) == ["tokens", "sick"]
    assert tree["tokens"] is tokens
    assert tokens.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["", "float128", "object", "void", "<f4", "V2", "f4", "Float32", "bfloat16\0"])
def test_dtypes_outside_the_whitelist_have_no_name(name: str) -> None:
    with pytest.raises(TreeError, match=r"leaf \['a'\] names an unknown dtype"):
        dtype_of(name, "['a']")


def test_ml_dtypes_of_equal_size_are_not_mixed_up() -> None:
    eights = [dtype for dtype in DTYPES.values() if dtype.name.startswith("float8")]
    got = travel([np.zeros(1, dtype) for dtype in eights])
    assert [leaf.dtype for leaf in got] == eights
    assert np.dtype(ml_dtypes.float8_e4m3fn) in eights
    assert_same(got, [np.zeros(1, dtype) for dtype in eights])


def test_records_of_a_record_keep_their_types() -> None:
    tree = Rollout(Sample(np.zeros(1), Frozen(np.ones(2))), FlaxBatch(tokens=np.zeros(3), temperature=0.5), ("a",))
    assert_same(travel(tree), tree)
