"""From host arrays to JAX's devices, back and there again: bit by bit, or an error that names the leaf."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from forebay.trainer import JaxTransfer
from forebay.wire import DTYPES, TreeError

from .jax_targets import EVERYWHERE, ROWS, aligned, placed_tree, queue_of, transferred
from .waiting import WAIT_S

SMALLER_THAN_A_BYTE = {"int2": 4, "uint2": 4, "int4": 16, "uint4": 16, "float4_e2m1fn": 16}
"""How many values they have; the rest of their byte means nothing."""
WIDE_DTYPES = ("int64", "uint64", "float64", "complex128")


def is_known_to_xla(name: str) -> bool:
    """Tells what differs from one version of jaxlib to another."""
    try:
        jax.device_put(np.zeros(1, DTYPES[name]))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def bit_patterns(name: str) -> np.ndarray[Any, Any]:
    """Every bit pattern of a small dtype, NaNs of all kinds included; else telling ones."""
    dtype = DTYPES[name]
    if name == "bool":
        return np.array([[True, False], [False, True]])
    if name in SMALLER_THAN_A_BYTE:
        return np.arange(SMALLER_THAN_A_BYTE[name], dtype=np.uint8).view(dtype).astype(np.float32).astype(dtype)
    if dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(dtype)
    if dtype.itemsize == 2:
        return np.arange(65536, dtype=np.uint16).view(dtype).reshape(256, 256)
    words = [0, 1, 0x80000000, 0x7F800001, 0x7FC12345, 0xFFC00001, 0xFF800000, 0x7F800000, 0xFFFFFFFF, 0x00000001]
    bits = np.array(words * (dtype.itemsize // 4), np.uint32)
    return bits.view(dtype)


NARROW = [name for name in DTYPES if name not in WIDE_DTYPES and is_known_to_xla(name)]


@pytest.mark.parametrize("name", NARROW)
def test_every_bit_of_every_dtype_survives_the_way_to_the_device_back_and_there_again(name: str) -> None:
    host = bit_patterns(name)
    transfer = JaxTransfer()
    first = transferred(transfer, placed_tree(transfer, {"x": host}))
    back = transfer.fetch(first)
    (leaf,) = back.tree.leaves
    assert (leaf.dtype, leaf.shape) == (host.dtype, host.shape)
    assert leaf.tobytes() == host.tobytes()
    second = transferred(transfer, back)
    assert second.tree["x"].dtype == host.dtype
    for on_device in (first, second):
        assert np.asarray(on_device.tree["x"]).tobytes() == host.tobytes()


@EVERYWHERE
def test_what_was_fetched_goes_back_to_where_it_was(target: Any) -> None:
    payload = {
        "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "zero": [np.zeros((2, 0, 3), np.int8), ("static", None, float("nan"))],
        "minus": np.full((2, 1), -0.0, np.float32),
    }
    if target is not ROWS:
        payload["scalar"] = np.array(-0.0, ml_dtypes.bfloat16)
    transfer = JaxTransfer(target)
    placed = placed_tree(transfer, payload)
    first = transferred(transfer, placed)
    assert first.host_bytes == placed.tree.host_bytes
    back = transfer.fetch(first)
    assert back.targets == placed.targets
    assert (back.tree.structure, back.tree.paths) == (placed.tree.structure, placed.tree.paths)
    assert back.tree.signature == placed.tree.signature == first.signature
    second = transferred(transfer, back)
    assert second.tree["zero"][1][:2] == ("static", None)
    for old, new, leaf in zip(first.arrays, second.arrays, placed.tree.leaves, strict=True):
        assert (new.sharding, new.shape, new.dtype) == (old.sharding, leaf.shape, leaf.dtype)
        assert np.asarray(new).tobytes() == leaf.tobytes()
        if target is None:
            assert new.committed == old.committed


def test_what_was_fetched_is_private_memory() -> None:
    transfer = JaxTransfer()
    on_device = transferred(transfer, placed_tree(transfer, {"x": aligned(0, 1)}))
    (leaf,) = transfer.fetch(on_device).tree.leaves
    # A view would keep the device's memory, which is to be free.
    assert leaf.flags.owndata
    assert leaf.ctypes.data != on_device.tree["x"].unsafe_buffer_pointer()


def test_a_demoted_micro_batch_reaches_the_step_bit_by_bit() -> None:
    tree = {name: bit_patterns(name) for name in ("bfloat16", "float8_e5m2", "int4", "float32", "bool")}
    tree |= {"scalar": np.array(-0.0, np.float32), "zero": np.zeros((0, 3), np.int8)}
    with queue_of(JaxTransfer()) as queue:
        queue.stage(tree, key="a")
        queue.stage({"x": np.zeros(1, np.int8)}, key="b")
        with queue.take("b", timeout_s=WAIT_S):
            pass
        with queue.take("a", timeout_s=WAIT_S) as batch:
            assert {name: np.asarray(batch.tree[name]).tobytes() for name in tree} == {
                name: leaf.tobytes() for name, leaf in tree.items()
            }
        assert queue.statistics.promotions - queue.statistics.demotions == 2


def test_what_the_device_cannot_have_is_an_error_for_good_that_names_the_leaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = jax.device_put

    def refuse_bytes(leaf: Any, *where: Any) -> Any:
        if leaf.dtype == np.uint8:
            raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: Unknown NumPy dtype")
        return put(leaf, *where)

    monkeypatch.setattr("forebay.trainer.jax_transfer.jax.device_put", refuse_bytes)
    with queue_of(JaxTransfer()) as queue:
        # No room on the device will ever help: else it would be in the way of all that come after it.
        with pytest.raises(TreeError, match=r"leaf \['x'\]"):
            queue.put({"x": np.zeros(2, np.uint8)})
        with contextlib.suppress(TreeError):
            queue.stage({"x": np.zeros(2, np.uint8)}, key="a")
            queue.take(timeout_s=WAIT_S)
        queue.stage({"x": np.zeros(2, np.int8)}, key="b")
        with queue.take(timeout_s=WAIT_S) as batch:
            assert batch.key == "b"


def test_an_error_of_device_put_names_the_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    put = jax.device_put

    def put_large(leaf: Any, *where: Any) -> Any:
        if leaf.shape == (2,):
            raise ValueError("not like this")
        return put(leaf, *where)

    monkeypatch.setattr("forebay.trainer.jax_transfer.jax.device_put", put_large)
    transfer = JaxTransfer()
    with pytest.raises(TreeError, match=r"leaf \['b'\] cannot be put on the device: not like this"):
        transfer.issue(placed_tree(transfer, {"a": np.zeros(1, np.int8), "b": np.zeros(2, np.int8)}))
