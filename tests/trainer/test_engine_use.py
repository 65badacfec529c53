"""What a staged engine is like to use, from its first call to its closing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import NotStagedError, Queued, StagedEngine, TrainerSettings
from forebay.wire import ClosedError

from .device_arrays import live, number_of, payload
from .engines import HandEngine, staged, wait_for_on_device
from .waiting import WAIT_S

pytestmark = pytest.mark.usefixtures("nothing_is_left")


MODES = pytest.mark.parametrize("mode", ["off", "stage", "serialize"])


@MODES
def test_options_are_passed_on_and_outputs_returned(mode: str) -> None:
    engine = HandEngine(by_hand=True)
    with staged(engine, mode) as wrapped:
        assert wrapped.engine is engine
        assert wrapped.fwd_bwd(payload(1), loss_scale=2.0, labels=["a"]) is engine.work[0]
        engine.work[0].finish()
        assert wrapped.update(rate=0.5) is engine.work[1]
        engine.work[1].finish()
    assert engine.trained == [1]
    assert engine.options == [{"loss_scale": 2.0, "labels": ["a"]}, {"rate": 0.5}]


def test_without_a_key_the_next_in_order_is_used() -> None:
    engine = HandEngine()
    with staged(engine) as wrapped:
        for number in range(4):
            wrapped.stage_batch(payload(number), key=str(number))
        wrapped.fwd_bwd()
        wrapped.fwd_bwd(stage_key="2")
        wrapped.fwd_bwd()
        wrapped.fwd_bwd()
        with pytest.raises(NotStagedError, match="no micro-batch is staged"):
            wrapped.fwd_bwd()
    assert engine.trained == [0, 2, 1, 3]


def test_the_engine_gets_device_arrays_in_the_containers_that_were_staged() -> None:
    got: list[Any] = []
    with staged(HandEngine(inside=got.append)) as wrapped:
        wrapped.stage_batch(payload(1, more=[np.arange(3, dtype=np.int8), ("text", None)]), key="a")
        wrapped.fwd_bwd(stage_key="a")
        (batch,) = got
        assert (list(batch), batch["policy"], batch["more"][1]) == (["x", "policy", "more"], 7, ("text", None))
        assert isinstance(batch["x"], jax.Array)
        assert isinstance(batch["more"][0], jax.Array)
        assert batch["more"][0].dtype == np.int8
        assert np.asarray(batch["more"][0]).tolist() == [0, 1, 2]
        got.clear()
        del batch


def test_an_engines_own_queue_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNIX_STAGE_BATCH", "stage")
    monkeypatch.setenv("TUNIX_STAGE_MAX_DEVICE_BATCHES", "2")
    with StagedEngine(HandEngine()) as wrapped:
        assert wrapped.queue.settings == TrainerSettings(stage_batch="stage", max_device_batches=2)
        assert wrapped.stage_batch(payload(1), key="a") == Queued("a", on_device=False, replaced=False)
        assert wrapped.queue.keys == ("a",)
        wrapped.reset_staged()


def test_leaving_its_context_closes_the_queue() -> None:
    with staged(HandEngine()) as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        assert repr(wrapped).startswith("StagedEngine(HandEngine, StagingQueue(stage, ['a'")
    with pytest.raises(ClosedError, match="the staged engine is closed"):
        wrapped.stage_batch(payload(2), key="b")
    with pytest.raises(ClosedError):
        wrapped.fwd_bwd(payload(2))
    with pytest.raises(ClosedError):
        wrapped.fwd_bwd(stage_key="a")


def test_closing_frees_what_waits_on_the_device() -> None:
    with staged(HandEngine(), cap=2) as wrapped:
        for number in range(3):
            wrapped.stage_batch(payload(number), key=str(number))
        wait_for_on_device(wrapped.queue, 2)
        assert live() == [0, 1]
    assert live() == [], "it is closed, but somebody may keep it"
    assert wrapped.queue.keys == ()
    wrapped.close()


@pytest.mark.parametrize("is_staged", [True, False])
def test_a_finished_batch_that_somebody_keeps_holds_nothing_on_the_device(is_staged: bool) -> None:
    with staged(HandEngine()) as wrapped:
        queue = wrapped.queue
        if is_staged:
            wrapped.stage_batch(payload(1), key="a")
        batch = queue.take("a", timeout_s=WAIT_S) if is_staged else queue.put(payload(1), timeout_s=WAIT_S)
        with batch:
            assert live() == [1]
            batch.dispatched()
            assert number_of(batch.tree) == 1
        assert live() == []
