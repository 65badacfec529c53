"""From host arrays to JAX's devices and back, and how the queue knows that a device is done."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from forebay.trainer import JaxTransfer, StagingQueue, TrainerSettings, jax_transfer
from forebay.trainer.host_tree import PlacedTree
from forebay.trainer.transfer import Dispatched, OnDevice
from forebay.wire import DTYPES, LocalError, TreeError

from .engines import HandEngine, Output, staged
from .waiting import WAIT_S

MESH = Mesh(np.array(jax.devices()[:2]), ("data",))
ROWS = NamedSharding(MESH, PartitionSpec("data"))
WHOLE = NamedSharding(MESH, PartitionSpec())
TARGETS = {
    "default": None,
    "device": jax.devices()[1],
    "sharding": SingleDeviceSharding(jax.devices()[2]),
    "rows": ROWS,
    "replicated": WHOLE,
    "pinned": SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"),
}
EVERYWHERE = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
WIDE = pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])


def queue_of(transfer: JaxTransfer) -> StagingQueue:
    return StagingQueue(transfer, settings=TrainerSettings(stage_batch="stage"))


def placed_tree(transfer: JaxTransfer, payload: Any) -> PlacedTree:
    return transfer.place(transfer.take_apart(payload))


def transferred(transfer: JaxTransfer, placed: PlacedTree) -> OnDevice:
    return transfer.complete(placed, transfer.issue(placed))


def watched(outputs: Any) -> Dispatched:
    work = JaxTransfer().watch(outputs)
    assert work is not None
    return work


def aligned(offset: int, fill: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Makes an array that starts so many bytes behind a multiple of 4096; JAX aliases those that are aligned."""
    memory = np.empty(3 * 4096, np.uint8)
    start = -memory.ctypes.data % 4096 + offset
    array: np.ndarray[Any, np.dtype[np.int32]] = np.ndarray((64, 16), np.int32, buffer=memory.data, offset=start)
    array[:] = fill
    return array


# --- aliasing ---


@pytest.mark.parametrize("offset", [0, 64])
def test_jax_does_keep_a_pointer_into_such_an_array(offset: int) -> None:
    """What the next tests protect from; if this fails they show nothing."""
    host = aligned(offset, 1)
    array = jax.device_put(host)
    host[:] = 2
    assert np.asarray(array).min() == 2


@EVERYWHERE
@pytest.mark.parametrize("offset", [0, 4, 64])
def test_what_the_caller_does_to_its_arrays_after_the_transfer_does_not_change_the_batch(
    target: Any, offset: int
) -> None:
    host = aligned(offset, 1)
    with queue_of(JaxTransfer(target)) as queue:
        queue.stage({"x": host}, key="a")
        with queue.take("a", timeout_s=WAIT_S) as batch:
            host[:] = 2
            assert (np.asarray(batch.tree["x"]) == 1).all()


@EVERYWHERE
def test_a_payload_of_a_steps_own_is_no_alias_either(target: Any) -> None:
    host = aligned(0, 1)
    host.flags.writeable = False
    with queue_of(JaxTransfer(target)) as queue, queue.put({"x": host}) as batch:
        host.flags.writeable = True
        host[:] = 2
        assert (np.asarray(batch.tree["x"]) == 1).all()


@EVERYWHERE
def test_a_device_array_inside_of_the_hosts_memory_is_never_handed_out(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_transfer, "_private_copy", lambda host: host)
    with queue_of(JaxTransfer(target)) as queue:
        host = aligned(64, 1)
        with pytest.raises(LocalError, match=r"leaf \['x'\] aliases the host memory"):
            queue.put({"x": host})
        queue.stage({"x": host}, key="a")
        with pytest.raises(LocalError, match=r"leaf \['x'\] aliases the host memory"):
            queue.take("a", timeout_s=WAIT_S)
        assert queue.statistics.drops == {"rejected": 1}


# --- 64 bits ---


@pytest.fixture
def wide_mode() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


@WIDE
def test_a_64_bit_leaf_is_refused_by_name_already_when_it_is_staged(dtype: str) -> None:
    with queue_of(JaxTransfer()) as queue:
        bad = {"a": [np.zeros(2, np.int32), {"wide": np.zeros(2, dtype)}]}
        for refused in (
            lambda: queue.stage(bad, key="a"),
            lambda: queue.put(bad),
            lambda: queue.put(bad, key="a"),
        ):
            with pytest.raises(TreeError, match=rf"leaf \['a'\]\[1\]\['wide'\] would be narrowed .*{dtype}"):
                refused()
        assert queue.keys == ()
        assert (queue.statistics.staged, queue.statistics.inline) == (0, {})


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (np.array([2**32 + 5, -1], np.int64), np.array([5, -1], np.int32)),
        (np.array([2**32 + 5, 7], np.uint64), np.array([5, 7], np.uint32)),
        (np.array([0.1, -0.0]), np.array([0.1, -0.0], np.float32)),
        (np.array([0.1 + 2j]), np.array([0.1 + 2j], np.complex64)),
    ],
)
def test_a_64_bit_leaf_is_narrowed_where_that_was_asked_for(wide: Any, narrow: Any) -> None:
    with queue_of(JaxTransfer(cast_64bit=True)) as queue:
        queue.stage({"x": wide}, key="a")
        with queue.take("a", timeout_s=WAIT_S) as batch:
            assert batch.tree["x"].dtype == narrow.dtype
            assert np.asarray(batch.tree["x"]).tobytes() == narrow.tobytes()


@WIDE
@pytest.mark.parametrize("cast", [True, False])
@pytest.mark.usefixtures("wide_mode")
def test_a_64_bit_leaf_stays_as_it_is_in_jaxs_64_bit_mode(dtype: str, cast: bool) -> None:
    host = np.array([2**40 + 5], dtype)
    with queue_of(JaxTransfer(cast_64bit=cast)) as queue:
        queue.stage({"x": host}, key="a")
        with queue.take("a", timeout_s=WAIT_S) as batch:
            assert batch.tree["x"].dtype == dtype
            assert np.asarray(batch.tree["x"]).tobytes() == host.tobytes()


def test_a_64_bit_mode_of_the_callers_thread_alone_narrows_nothing_without_a_word() -> None:
    host = np.array([2**32 + 5], np.int64)
    with queue_of(JaxTransfer()) as queue, jax.enable_x64(True):
        try:
            queue.stage({"x": host}, key="a")
            with queue.take("a", timeout_s=WAIT_S) as batch:
                assert np.asarray(batch.tree["x"]).tolist() == host.tolist()
        except TreeError as refusal:
            assert "['x']" in str(refusal)  # noqa: PT017 - to refuse it is as good


# --- there and back ---


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


# --- watching the device's work ---


def test_outputs_without_device_arrays_cannot_be_watched() -> None:
    nothing: list[Any] = [None, 1.0, "text", [], {"a": [np.zeros(3), np.float32(1)]}]
    for outputs in nothing:
        assert JaxTransfer().watch(outputs) is None


def test_work_is_taken_to_be_done_when_its_smallest_output_is_ready() -> None:
    outputs = [Output(nbytes) for nbytes in (8, 4, 16)]
    work = watched({"a": outputs[0], "b": (outputs[1], {"c": outputs[2]}), "loss": 1.0})
    outputs[0].ready = outputs[2].ready = True
    assert not work.is_done()
    assert "running" in repr(work)
    outputs[1].ready = True
    assert work.is_done()
    assert repr(work) == "DispatchedArrays(3, done)"


def test_whoever_waits_for_work_waits_for_all_of_its_outputs() -> None:
    outputs = [Output(nbytes) for nbytes in (8, 4, 16)]
    work = watched(outputs)
    assert [output.waits for output in outputs] == [0, 0, 0]
    work.wait()
    assert [output.waits for output in outputs] == [1, 1, 1]
    assert work.is_done()


def test_looking_whether_work_is_done_waits_for_nothing() -> None:
    output = Output(4)
    assert not watched(output).is_done()
    assert output.waits == 0


def test_real_arrays_are_done_after_a_wait() -> None:
    work = watched({"loss": jnp.ones(()), "grads": [jnp.ones((300, 300)) @ jnp.ones((300, 300))]})
    work.wait()
    assert work.is_done()


def test_outputs_do_not_live_longer_for_being_watched_but_for_the_smallest() -> None:
    outputs: list[jax.Array] = [jnp.ones((64, 64)), jnp.ones(()), jnp.ones((32, 32))]
    alive = [weakref.ref(output) for output in outputs]
    work = watched(outputs)
    del outputs
    assert [reference() is not None for reference in alive] == [False, True, False]
    work.wait()
    assert work.is_done()
    del work
    assert alive[1]() is None


def test_work_whose_large_outputs_were_let_go_is_not_done_before_the_smallest_is() -> None:
    large, small = Output(1 << 20), Output(4)
    work = watched([large, small])
    del large
    assert not work.is_done()
    small.ready = True
    assert work.is_done()


@pytest.mark.parametrize("which", [0, 1])
def test_outputs_that_were_deleted_are_passed_over(which: int) -> None:
    outputs: list[jax.Array] = [jnp.ones(()), jnp.ones((8, 8))]
    work = watched(outputs)
    outputs[which].delete()
    assert work.is_done() in (True, False)
    work.wait()
    assert work.is_done()


def test_large_outputs_do_not_live_longer_for_being_watched_even_if_there_is_nothing_smaller() -> None:
    output = jnp.ones((1 << 10, 1 << 10))
    alive = weakref.ref(output)
    work = watched([output])
    del output
    assert alive() is None
    assert work.is_lost()
    assert not work.is_done()


def test_what_is_no_pytree_is_not_watched_and_fails_nobody() -> None:
    assert JaxTransfer().watch({1: jnp.ones(()), "b": jnp.ones(())}) is None


def test_outputs_that_were_all_donated_are_lost_and_not_taken_to_be_done() -> None:
    outputs: list[jax.Array] = [jnp.ones(4), jnp.ones((8, 8))]
    work = watched(outputs)
    double = jax.jit(lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree), donate_argnums=0)
    doubled = double(outputs)
    assert all(output.is_deleted() for output in outputs)
    assert not work.is_done()
    assert work.is_lost()
    work.wait()
    jax.block_until_ready(doubled)


def test_work_that_failed_is_told_to_whoever_uses_its_results_not_to_whoever_waits() -> None:
    failed, other = Output(4, error=jax.errors.JaxRuntimeError("INTERNAL: it failed")), Output(8)
    watched([failed, other]).wait()
    assert (failed.waits, other.waits) == (1, 1), "the others are waited for all the same"


def test_outputs_with_a_typed_random_key_can_be_watched() -> None:
    outputs = {"loss": jnp.ones(()), "random": jax.random.key(0)}
    work = watched(outputs)
    work.wait()
    assert work.is_done()
    assert "done" in repr(work)


def test_an_engine_may_put_out_its_random_key() -> None:
    class Engine(HandEngine):
        def fwd_bwd(self, batch: Any, **options: Any) -> Any:
            super().fwd_bwd(batch, **options)
            return {"random": jax.random.key(0)}

    engine = Engine()
    with staged(engine) as wrapped:
        for number in range(3):
            wrapped.stage_batch({"x": np.full((2, 2), number, np.float32)}, key=str(number))
            wrapped.fwd_bwd(stage_key=str(number))
    assert engine.trained == [0, 1, 2]
