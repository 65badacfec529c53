"""From host arrays to JAX's devices: no batch is an alias of them, and none is narrowed without a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import JaxTransfer, jax_transfer
from forebay.wire import LocalError, TreeError

from .jax_targets import EVERYWHERE, aligned, queue_of
from .waiting import WAIT_S

WIDE = pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])


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
