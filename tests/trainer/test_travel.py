"""What methods return: waited for, fetched, packed, or left out with a reason."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.trainer.travel import packed, wait_for
from forebay.wire import Limits, TreeRegistry, default_registry, unpack

from .engines import HandWork, Output
from .waiting import WAIT_S, Call

MIB = 1 << 20


def travelled(outputs: Any, registry: TreeRegistry = default_registry, max_bytes: int = MIB) -> Any:
    value, omitted = packed(outputs, registry, max_bytes)
    assert value is not None, omitted
    assert omitted == ""
    return unpack(value, registry=registry, limits=Limits())


def reason(outputs: Any, max_bytes: int = MIB) -> str:
    value, omitted = packed(outputs, default_registry, max_bytes)
    assert value is None
    return omitted


def donated() -> jax.Array:
    """Returns an array that was given to later work."""
    array = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(array).block_until_ready()
    assert array.is_deleted()
    return array


# --- waiting ---


def test_all_work_is_waited_for_wherever_it_is_in_the_outputs() -> None:
    work = [HandWork(), HandWork()]
    call = Call(lambda: wait_for({"a": [1, work[0]], "b": (None, work[1], jnp.ones(2))}))
    assert work[0].waited_for.wait(WAIT_S), "the first was not waited for"
    work[0].finish()
    assert work[1].waited_for.wait(WAIT_S), "the second was not waited for"
    assert not call.is_done
    work[1].finish()
    call.result()


@pytest.mark.parametrize("outputs", [None, 5, "text", {}, [np.ones(3)], object(), {1: 2, "a": 3}])
def test_what_is_no_work_is_not_waited_for(outputs: Any) -> None:
    wait_for(outputs)


def test_what_was_donated_is_passed_over() -> None:
    wait_for([donated(), jnp.ones(2)])


class DonatedMeanwhile(jax.Array):
    """Is donated by another thread while it is waited for."""

    def __init__(self) -> None:
        self.deleted = False

    def is_deleted(self) -> bool:
        return bool(self.deleted)

    def is_ready(self) -> bool:
        return False

    def block_until_ready(self) -> Any:
        self.deleted = True
        raise RuntimeError("Array has been deleted")


def test_what_is_donated_while_it_is_waited_for_is_passed_over() -> None:
    wait_for([DonatedMeanwhile()])


def test_an_error_of_the_device_is_raised() -> None:
    with pytest.raises(ValueError, match="out of memory"):
        wait_for([Output(4), Output(4, error=ValueError("out of memory"))])


def test_an_error_of_a_callback_on_the_device_is_raised() -> None:
    def fail(_: Any) -> Any:
        raise ValueError("the callback failed")

    @jax.jit
    def work(x: jax.Array) -> jax.Array:
        made: jax.Array = jax.pure_callback(fail, jax.ShapeDtypeStruct((3,), jnp.float32), x)
        return made

    with pytest.raises(Exception, match="the callback failed"):
        wait_for({"loss": work(jnp.ones(3))})


# --- packing ---


def test_device_arrays_are_fetched_and_the_rest_is_as_it_was() -> None:
    outputs: dict[str, Any] = {
        "loss": jnp.float32(1.5),
        "grads": [jnp.arange(6, dtype=jnp.int32).reshape(2, 3), np.ones(2, np.float64)],
        "half": jnp.ones(2, jnp.bfloat16),
        "static": ("text", None, True, 3, 2.5),
        "scalar": np.float32(7),
        "empty": jnp.zeros((0, 4)),
    }
    value = travelled(outputs)
    assert value["static"] == outputs["static"]
    for name in ("loss", "half", "scalar", "empty"):
        np.testing.assert_array_equal(value[name], np.asarray(outputs[name]))
        assert value[name].dtype == outputs[name].dtype
    for got, sent in zip(value["grads"], outputs["grads"], strict=True):
        np.testing.assert_array_equal(got, np.asarray(sent))
        assert type(got) is np.ndarray


@pytest.mark.parametrize("outputs", [None, 3, "text", (), [], {}, ((), {})])
def test_outputs_without_arrays_travel(outputs: Any) -> None:
    assert travelled(outputs) == outputs


def test_sharded_arrays_are_fetched_whole() -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    np.testing.assert_array_equal(
        travelled(jax.device_put(np.arange(8.0, dtype=np.float32), sharding)), np.arange(8)
    )


class Pair(NamedTuple):
    loss: Any
    steps: int


@dataclasses.dataclass
class Unregistered:
    loss: Any


def test_registered_classes_travel() -> None:
    registry = TreeRegistry()
    registry.register(Pair)
    value = travelled(Pair(jnp.float32(2), 3), registry)
    assert type(value) is Pair
    assert (float(value.loss), value.steps) == (2.0, 3)


@pytest.mark.parametrize("outputs", [Unregistered(1), {"a": Unregistered(jnp.ones(2))}, Pair(jnp.ones(2), 3)])
def test_unregistered_classes_stay_and_the_reason_names_them(outputs: Any) -> None:
    assert "not registered" in reason(outputs)
    assert "register_type" in reason(outputs)


@pytest.mark.parametrize("leaf", [{1, 2}, b"bytes", 1j, object(), lambda: None, 1 << 70, "\ud800"])
def test_what_no_micro_batch_may_hold_stays_with_a_reason(leaf: Any) -> None:
    assert reason({"ok": jnp.ones(2), "leaf": leaf})


def test_what_only_behaves_like_a_device_array_travels_as_none() -> None:
    assert travelled({"loss": HandWork(), "steps": 3}) == {"loss": None, "steps": 3}


def test_outputs_over_the_limit_stay_and_the_reason_says_how_large_they_are() -> None:
    assert travelled(jnp.zeros(256, jnp.float32), max_bytes=1024) is not None
    words = reason([jnp.zeros(256, jnp.float32), np.zeros(1, np.int8)], max_bytes=1024)
    assert words == "1025 bytes in 2 leaves are over 1024 (max_answer_bytes)"


def test_outputs_over_the_limit_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.trainer.travel._fetched", lambda _: pytest.fail("it was fetched"))
    assert reason(jnp.zeros(1000), max_bytes=1024)


def test_long_texts_count_too() -> None:
    assert "too large" in reason("x" * 2000, max_bytes=1024)


def test_outputs_that_were_donated_stay_with_a_reason() -> None:
    assert "deleted" in reason({"loss": 1.0, "grads": donated()})


@pytest.mark.parametrize("outputs", [{1: 2, "a": 3}, {None: jnp.ones(2), 1: 2}])
def test_outputs_that_jax_cannot_take_apart_stay_with_a_reason(outputs: Any) -> None:
    assert reason(outputs)


def test_packing_waits_for_the_device_by_itself() -> None:
    may_go_on = threading.Event()

    def hold(x: Any) -> Any:
        assert may_go_on.wait(WAIT_S), "nobody let the device go on"
        return np.asarray(x)

    slow = jax.jit(lambda x: jax.pure_callback(hold, jax.ShapeDtypeStruct((3,), jnp.float32), x))
    call = Call(lambda: travelled(slow(jnp.ones(3))))
    assert not call.is_done
    may_go_on.set()
    np.testing.assert_array_equal(call.result(), np.ones(3))
