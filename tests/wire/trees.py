"""Trees for the tests: classes, strategies, a comparison that forgives nothing, and the way over the wire."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flax import struct as flax_struct
from hypothesis import strategies as st

from forebay.wire import (
    DTYPES,
    LEAF_ALIGNMENT,
    Array,
    Limits,
    TreeRegistry,
    decode_manifest,
    describe,
    flatten,
    unflatten,
)

LIMITS = Limits(chunk_bytes=256)
REGISTRY = TreeRegistry()


@REGISTRY.register
class Sample(NamedTuple):
    tokens: Any
    mask: Any


@REGISTRY.register
@dataclasses.dataclass
class Rollout:
    tokens: Any
    reward: Any
    tags: Any = ()


@REGISTRY.register
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    experts: Any


@REGISTRY.register
@dataclasses.dataclass
class Empty:
    pass


@REGISTRY.register
class FlaxBatch(flax_struct.PyTreeNode):  # type: ignore[no-untyped-call]
    tokens: Any
    temperature: float = flax_struct.field(pytree_node=False)  # type: ignore[no-untyped-call]


def as_is(array: Array) -> Array:
    return array


def fortran(array: Array) -> Array:
    return np.asfortranarray(array) if array.ndim else array


def reversed_strides(array: Array) -> Array:
    return array[tuple(slice(None, None, -1) for _ in array.shape)]


def every_other(array: Array) -> Array:
    return np.repeat(array, 2, axis=0)[::2] if array.ndim else array


def broadcast(array: Array) -> Array:
    return np.broadcast_to(array, (3, *array.shape))


def big_endian(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder(">"))


def read_only(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array: Array) -> Array:
    memory = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
    return memory.view(array.dtype).reshape(array.shape)


FORMS: tuple[Callable[[Array], Array], ...] = (
    *(as_is, fortran, reversed_strides, every_other),
    *(broadcast, big_endian, read_only, unaligned),
)


def random_array(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Array:
    """Returns an array of random bits: NaN payloads, -0.0 and patterns that no computation makes."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype).reshape(shape)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
arrays = st.builds(random_array, st.sampled_from(list(DTYPES.values())), shapes, st.integers(0, 1 << 32))
formed_arrays = st.builds(lambda form, array: form(array), st.sampled_from(FORMS), arrays)
scalars = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=20)
statics = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
keys = st.text(max_size=5) | st.integers(-(1 << 63), (1 << 64) - 1)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.dictionaries(keys, inner, max_size=4),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.builds(Sample, inner, inner),
        st.builds(Rollout, inner, inner, inner),
        st.builds(Frozen, inner),
        st.builds(Empty),
        st.builds(FlaxBatch, tokens=inner, temperature=inner),
    )


trees = st.recursive(formed_arrays | statics, _containers, max_leaves=12)


def travel(tree: Any, limits: Limits = LIMITS) -> Any:
    """Sends a tree from one side to the other: manifest as bytes, body span by span."""
    flat = flatten(tree, registry=REGISTRY, limits=limits)
    sent = describe(flat, limits)
    layout = sent.layout(limits.chunk_bytes)
    # So their memory can be sent as it lies.
    assert all(array.flags.c_contiguous and array.dtype.isnative for array in flat.arrays)
    source = bytearray(layout.body_bytes)
    for array, offset in zip(flat.arrays, layout.offsets, strict=True):
        source[offset : offset + array.nbytes] = array.tobytes()

    arrived = decode_manifest(sent.encode(limits), limits)
    assert arrived.layout(limits.chunk_bytes) == layout
    assert arrived.paths == flat.paths
    # Starts at a cache line, as a slot's body does.
    memory = np.full(layout.body_bytes + LEAF_ALIGNMENT, 0xAA, np.uint8)
    start = -memory.ctypes.data % LEAF_ALIGNMENT
    body = memory.data[start : start + layout.body_bytes]
    for span in layout.spans:
        body[span.offset : span.offset + span.length] = source[span.offset : span.offset + span.length]
    leaves = [
        np.frombuffer(body[offset : offset + leaf.nbytes], DTYPES[leaf.dtype]).reshape(leaf.shape)
        for leaf, offset in zip(arrived.leaves, layout.offsets, strict=True)
    ]
    assert all(leaf.flags.aligned and leaf.flags.c_contiguous for leaf in leaves)
    return unflatten(arrived.structure, leaves, registry=REGISTRY)


def assert_same(got: Any, expected: Any) -> None:
    """Compares two trees bit by bit and type by type; byte order and strides of `expected` do not count."""
    if isinstance(expected, np.ndarray | np.generic):
        expected = np.asarray(expected)
        native = expected.astype(expected.dtype.newbyteorder("="), order="C")
        assert type(got) is np.ndarray
        assert (got.dtype, got.shape) == (native.dtype, native.shape)
        assert got.dtype.name == native.dtype.name
        assert got.tobytes() == native.tobytes()
        return
    assert type(got) is type(expected)
    if isinstance(expected, float):
        assert struct.pack("<d", got) == struct.pack("<d", expected)
    elif isinstance(expected, dict):
        assert [(type(key), key) for key in got] == [(type(key), key) for key in expected]
        assert_all_same(got.values(), expected.values())
    elif isinstance(expected, list | tuple):
        assert_all_same(got, expected)
    elif dataclasses.is_dataclass(expected):
        names = [field.name for field in dataclasses.fields(expected)]
        assert_all_same([getattr(got, name) for name in names], [getattr(expected, name) for name in names])
    else:
        assert got == expected


def assert_all_same(got: Any, expected: Any) -> None:
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other)
