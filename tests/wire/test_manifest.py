from __future__ import annotations

import contextlib
import re
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire import (
    CODECS,
    DTYPES,
    GIB,
    Limits,
    Manifest,
    TreeError,
    TreeRegistry,
    decode_manifest,
    describe,
    flatten,
    unflatten,
)

from .trees import LIMITS, REGISTRY, Rollout, trees

LEAF = ["a"]
SPEC: list[Any] = ["int8", [1], "raw", 1]


def encoded(structure: Any, leaves: Any) -> bytes:
    return msgspec.msgpack.encode([structure, leaves])


def refused(frame: bytes, limits: Limits = LIMITS) -> str:
    """Decodes bytes that must be refused, and asserts that nothing large was allocated for them."""
    already_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with pytest.raises(TreeError) as caught:
            decode_manifest(frame, limits)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        if not already_tracing:
            tracemalloc.stop()
    assert peak_bytes < 1 << 20 or len(frame) > 10_000
    return str(caught.value)


# --- what is sent is what is decoded ---


@given(trees)
def test_a_manifest_survives_its_own_encoding(tree: Any) -> None:
    frame = describe(flatten(tree, registry=REGISTRY, limits=LIMITS), LIMITS).encode(LIMITS)
    assert decode_manifest(frame, LIMITS).encode(LIMITS) == frame


def test_a_manifest_counts_its_payload_without_the_gaps() -> None:
    flat = flatten([np.zeros(3, np.int8), np.zeros((2, 5), np.int16)], registry=REGISTRY, limits=LIMITS)
    manifest = describe(flat, LIMITS)
    assert manifest.payload_bytes == 23
    assert manifest.layout(LIMITS.chunk_bytes).body_bytes == 84
    assert manifest.paths == ("[0]", "[1]")


# --- hostile bytes ---


def assert_decodes_or_refuses(frame: bytes) -> None:
    """The one claim of all fuzzing: a usable manifest, or TreeError and nothing else."""
    try:
        manifest = decode_manifest(frame, LIMITS)
    except TreeError:
        return
    assert len(manifest.leaves) == len(manifest.paths) <= LIMITS.max_leaves
    assert all(leaf.nbytes >= 0 and leaf.dtype in DTYPES and leaf.codec in CODECS for leaf in manifest.leaves)
    assert manifest.payload_bytes <= LIMITS.max_micro_batch_bytes
    again = manifest.encode(LIMITS)
    assert decode_manifest(again, LIMITS).encode(LIMITS) == again
    try:
        unflatten(manifest.structure, list(manifest.paths), registry=REGISTRY)
    except TreeError:
        return


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(frame: bytes) -> None:
    assert_decodes_or_refuses(frame)


@given(trees, st.data())
def test_a_truncated_manifest_is_refused(tree: Any, data: st.DataObject) -> None:
    frame = describe(flatten(tree, registry=REGISTRY, limits=LIMITS), LIMITS).encode(LIMITS)
    cut = data.draw(st.integers(0, len(frame) - 1))
    refused(frame[:cut])


@given(trees, st.binary(min_size=1, max_size=20))
def test_bytes_behind_a_manifest_are_refused(tree: Any, tail: bytes) -> None:
    frame = describe(flatten(tree, registry=REGISTRY, limits=LIMITS), LIMITS).encode(LIMITS)
    refused(frame + tail)


interesting_bytes = st.sampled_from(
    [0x00, 0x7F, 0x80, 0x90, 0x91, 0xA0, 0xC0, 0xC1, 0xC4, 0xC7]
) | st.sampled_from([0xCA, 0xCB, 0xCF, 0xD3, 0xD6, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xFF])


@given(trees, st.data())
def test_a_damaged_manifest_is_decoded_or_refused(tree: Any, data: st.DataObject) -> None:
    frame = bytearray(describe(flatten(tree, registry=REGISTRY, limits=LIMITS), LIMITS).encode(LIMITS))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(frame)))
        length = data.draw(st.integers(0, 3))
        frame[start : start + length] = data.draw(
            st.binary(max_size=3) | interesting_bytes.map(lambda one: bytes([one]))
        )
    assert_decodes_or_refuses(bytes(frame))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=5,
)
names = st.lists(st.sampled_from(["tokens", "reward", "tags", "x", "\x1b"]) | plain, max_size=3)
nodes = st.recursive(
    st.just(LEAF) | st.tuples(st.just("s"), plain) | plain,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("lt"), st.lists(inner, max_size=3)),
        st.tuples(st.just("d"), names, st.lists(inner, max_size=3)),
        st.tuples(st.just("r"), st.sampled_from(["Rollout", "Sample", "x"]), names, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)
specs = st.lists(
    st.just(SPEC)
    | st.tuples(
        st.sampled_from([*DTYPES, "object"]),
        st.lists(st.integers(-1, 3) | st.sampled_from([1 << 31, 1 << 62, (1 << 64) - 1, 1.0, None]), max_size=3),
        st.sampled_from(["raw", "zip"]),
        st.integers(-1, 40) | st.just(1 << 61),
    )
    | plain,
    max_size=4,
)


@given(nodes, specs)
def test_a_malicious_structure_is_decoded_or_refused(structure: Any, leaves: Any) -> None:
    assert_decodes_or_refuses(encoded(structure, leaves))


@pytest.mark.parametrize(
    ("structure", "leaves", "words"),
    [
        (LEAF, [["int8", [2**61], "raw", 2**61]], "larger than slot_max_bytes allows.*2305843009213693952 bytes"),
        (LEAF, [["float64", [2**32, 2**32], "raw", 0]], "<root> has a shape that overflows"),
        (LEAF, [["int8", [2**64 - 1] * 64, "raw", 0]], "<root> has a shape that overflows"),
        (LEAF, [["float64", [0, 2**60], "raw", 0]], "<root> has a shape that overflows"),
        (LEAF, [["int8", [1] * 65, "raw", 1]], "<root> has an impossible shape.*64 dimensions"),
        (LEAF, [["int8", [-1], "raw", -1]], "<root> has an impossible shape"),
        (LEAF, [["int8", [-1, -1], "raw", 1]], "<root> has an impossible shape"),
        (LEAF, [["int8", [3], "raw", 4]], r"does not fit its bytes; got int8\[3\] in 4 bytes; limit 3 bytes"),
        (LEAF, [["int16", [3], "raw", 3]], "does not fit its bytes.*limit 6 bytes"),
        (LEAF, [["int8", [0], "raw", -1]], "does not fit its bytes"),
        (LEAF, [["int8", [], "raw", 0]], "does not fit its bytes.*limit 1 bytes"),
        (LEAF, [["object", [1], "raw", 8]], "unknown dtype; got object"),
        (LEAF, [["<f4", [1], "raw", 4]], "unknown dtype"),
        (LEAF, [["int8", [1], "pickle", 1]], r"unknown codec; got pickle; limit \['raw', "),
        (LEAF, [["int8", [1.5], "raw", 1]], "cannot be read"),
        (LEAF, [["int8", [1], "raw"]], "cannot be read"),
        (LEAF, [["int8", 1, "raw", 1]], "cannot be read"),
        (LEAF, [], "structure does not fit its leaves; got 0; limit at least 1"),
        (LEAF, [SPEC, SPEC], "structure does not fit its leaves; got 2; limit 1"),
        (["l", []], [SPEC], "structure does not fit its leaves"),
        (["z"], [], "cannot be read"),
        (["a", 1, 2], [], "does not fit its leaves"),
        (None, [], "cannot be read"),
        (["d", ["k", "k"], [LEAF, LEAF]], [SPEC, SPEC], "<root> has repeated or unmatched keys"),
        (["d", [1, 1], [LEAF, LEAF]], [SPEC, SPEC], "<root> has repeated or unmatched keys"),
        (["d", ["k"], []], [], "<root> has repeated or unmatched keys"),
        (["d", [], [LEAF]], [SPEC], "<root> has repeated or unmatched keys"),
        (["d", [1.5], [LEAF]], [SPEC], "cannot be read"),
        (["d", [True], [LEAF]], [SPEC], "cannot be read"),
        (["d", [None], [LEAF]], [SPEC], "cannot be read"),
        (["r", "Rollout", ["x", "x"], [LEAF, LEAF]], [SPEC, SPEC], "<root> has repeated or unmatched keys"),
        (["r", "Rollout", ["x"], []], [], "<root> has repeated or unmatched keys"),
        (["r", "Rollout", ["\x1b[2J"], [LEAF]], [SPEC], "<root> has a field with an impossible name"),
        (["r", "Rollout", ["a b"], [LEAF]], [SPEC], "<root> has a field with an impossible name"),
        (["r", "Rollout", [""], [LEAF]], [SPEC], "<root> has a field with an impossible name"),
        (["l", [["s", b"bytes"]]], [], r"\[0\] cannot travel as a static value; got bytes"),
        (["l", [["s", {"a": 1}]]], [], r"\[0\] cannot travel as a static value; got dict"),
        (["d", ["k"], [["s", [[b""]]]]], [], r"\['k'\] cannot travel as a static value; got bytes"),
    ],
)
def test_contradictions_are_refused_by_path_value_and_limit(structure: Any, leaves: Any, words: str) -> None:
    message = refused(encoded(structure, leaves))
    assert msgspec.msgpack.encode(message)  # it can be sent back
    assert "\x1b" not in message
    assert re.search(words, message), message


@pytest.mark.parametrize(
    "static",
    [b"\xd6\xff\x00\x00\x00\x01", b"\xd4\x05\x00", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xc1", b"\xa2\xff\xff"],
    ids=["timestamp", "extension", "bad timestamp", "never used", "bad UTF-8"],
)
def test_msgpack_types_beyond_plain_data_are_refused(static: bytes) -> None:
    refused(b"\x92\x92\xa1s" + static + b"\x90")


def test_the_same_timestamp_free_bytes_are_accepted() -> None:
    assert decode_manifest(b"\x92\x92\xa1s\x05\x90", LIMITS).leaves == ()


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x01", b"\x92\xa1l\x91", b"\x92\xa1s\x91"])
@pytest.mark.parametrize("levels", [40, 1000, 100_000])
def test_deep_nesting_is_refused_however_deep(opening: bytes, levels: int) -> None:
    for structure in (opening * levels, b"\x92\xa1s" + opening * levels):
        refused(b"\x92" + structure + b"\x90" * 2)


@pytest.mark.parametrize("size", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
@pytest.mark.parametrize("before", [b"", b"\x92", b"\x92\x91\xa1a", b"\x92\x92\xa1l", b"\x92\x92\xa1s"])
def test_declared_sizes_are_not_allocated(before: bytes, size: bytes) -> None:
    refused(before + size)


def test_long_keys_above_many_leaves_do_not_unfold_to_gigabytes_of_paths() -> None:
    count = 4000
    frame = encoded(["d", ["k" * 900_000], [["l", [LEAF] * count]]], [SPEC] * count)
    limits = Limits()
    assert len(frame) < limits.max_manifest_bytes
    tracemalloc.start()
    try:
        with pytest.raises(TreeError, match=r"path .*kkk\.\.\.kkk.* is too long; got 900004 characters"):
            decode_manifest(frame, limits)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * len(frame)


def test_a_manifest_over_its_limit_is_refused_unread() -> None:
    limits = Limits(max_manifest_bytes=10)
    assert "too large; got 11 bytes; limit 10 bytes" in refused(b"\xff" * 11, limits)


def test_too_many_leaves_are_refused() -> None:
    limits = Limits(max_leaves=2)
    frame = encoded(["l", [LEAF] * 3], [SPEC] * 3)
    assert decode_manifest(frame, LIMITS).paths == ("[0]", "[1]", "[2]")
    assert "too many leaves; got 3; limit 2" in refused(frame, limits)


def test_the_gaps_between_leaves_count_against_the_slots_limit() -> None:
    limits = Limits(max_micro_batch_bytes=64)
    decode_manifest(encoded(["l", [LEAF]], [["int8", [64], "raw", 64]]), limits)
    refused(encoded(["l", [LEAF, LEAF]], [SPEC, SPEC]), limits)


def test_a_declared_size_within_the_limit_takes_no_memory_either() -> None:
    frame = encoded(LEAF, [["int8", [8 * GIB], "raw", 8 * GIB]])
    tracemalloc.start()
    try:
        manifest = decode_manifest(frame, Limits())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert manifest.payload_bytes == 8 * GIB
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0], [0]])
def test_a_shape_that_is_accepted_can_be_made(shape: list[int]) -> None:
    (leaf,) = decode_manifest(encoded(LEAF, [["int8", shape, "raw", 0]]), LIMITS).leaves
    assert np.frombuffer(b"", DTYPES[leaf.dtype]).reshape(leaf.shape).shape == tuple(shape)


def test_depth_is_counted_alike_on_both_sides() -> None:
    tree: Any = np.zeros(1, np.int8)
    for _ in range(LIMITS.max_depth):
        tree = [tree]
    frame = describe(flatten(tree, registry=REGISTRY, limits=LIMITS), LIMITS).encode(LIMITS)
    assert isinstance(decode_manifest(frame, LIMITS), Manifest)
    assert "too deep" in refused(frame, Limits(max_depth=LIMITS.max_depth - 1))


def test_containers_around_a_static_value_count_towards_its_depth() -> None:
    limits = Limits(max_depth=5)
    static: Any = ()
    for _ in range(3):
        static = (static,)
    fits, deeper = [["s", static]], [["l", [["s", static]]]]
    assert decode_manifest(encoded(["l", fits], []), limits).leaves == ()
    assert "too deep" in refused(encoded(["l", [["l", deeper]]], []), limits)
    with pytest.raises(TreeError, match="too deep"):
        flatten([[[static]]], registry=REGISTRY, limits=limits)
    assert flatten([[static]], registry=REGISTRY, limits=limits).arrays == ()


def test_a_class_that_the_receiver_does_not_know_is_refused_by_path() -> None:
    structure = flatten({"r": Rollout(1, 2)}, registry=REGISTRY, limits=LIMITS).structure
    with pytest.raises(TreeError, match=r"\['r'\] is of a class that is not registered here; got Rollout"):
        unflatten(structure, [], registry=TreeRegistry())


@pytest.mark.parametrize("child", [["s", 1], ["a"]], ids=["static values", "leaves that were not declared"])
def test_a_manifest_of_many_children_below_a_long_key_takes_no_multiple_of_its_size(child: list[object]) -> None:
    encoded = msgspec.msgpack.encode([["d", ["k" * 900], [["l", [child] * 200_000]]], []])
    tracemalloc.start()
    try:
        with contextlib.suppress(TreeError):
            decode_manifest(encoded, Limits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * len(encoded)  # their paths would take 900 bytes each


# --- one that was right is not looked at again ---


def small_frame(tree: Any) -> bytes:
    return describe(flatten(tree, registry=REGISTRY, limits=LIMITS), LIMITS).encode(LIMITS)


def test_equal_bytes_give_the_manifest_that_was_checked_already() -> None:
    frame = small_frame({"step": (1, 2), "ids": np.zeros(3)})
    assert decode_manifest(bytes(bytearray(frame)), LIMITS) is decode_manifest(frame, LIMITS)


def test_what_one_side_accepts_is_checked_again_against_other_limits() -> None:
    frame = small_frame({"ids": np.zeros(2_000)})
    decode_manifest(frame, LIMITS)
    with pytest.raises(TreeError, match="is larger than"):
        decode_manifest(frame, msgspec.structs.replace(LIMITS, max_micro_batch_bytes=15_999))


def test_a_manifest_that_is_refused_is_refused_each_time() -> None:
    for _ in range(3):
        assert "unknown codec" in refused(encoded(LEAF, [["int8", [1], "zip", 1]]))


def test_manifests_of_many_shapes_do_not_add_up() -> None:
    def leaves_below_a_long_key(number: int) -> bytes:
        key = f"{number:0>1000}"
        return encoded(["d", [key], [["l", [LEAF] * 400]]], [["int8", [], "raw", 1]] * 400)

    assert len(leaves_below_a_long_key(0)) < 8 << 10
    tracemalloc.start()
    try:
        for number in range(200):
            decode_manifest(leaves_below_a_long_key(number), Limits())
        now = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert now < 20 << 20  # the paths of all of them would take 80 MB
