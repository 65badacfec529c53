"""How the queue knows that a device is done with a step's work."""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.trainer import JaxTransfer
from forebay.trainer.transfer import Dispatched

from .engines import HandEngine, Output, staged


def watched(outputs: Any) -> Dispatched:
    work = JaxTransfer().watch(outputs)
    assert work is not None
    return work


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
