"""Off, the engine gets the very payload that it was given, and nothing is staged."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import Declined, NotStagedError, Prepared, StagedEngine
from forebay.wire import ClosedError, SettingError

from .device_arrays import live, payload
from .engines import HandEngine, staged

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        (
            "TUNIX_STAGE_BATCH",
            "on",
            "setting stage_batch (TUNIX_STAGE_BATCH); got on; limit off, stage, serialize",
        ),
        (
            "TUNIX_STAGE_MAX_DEVICE_BATCHES",
            "-1",
            "setting max_device_batches (TUNIX_STAGE_MAX_DEVICE_BATCHES); got -1; limit 0 to 1024",
        ),
        (
            "TUNIX_STAGE_MAX_DEVICE_BATCHES",
            "many",
            "setting max_device_batches (TUNIX_STAGE_MAX_DEVICE_BATCHES); got many; limit an integer",
        ),
    ],
)
def test_a_wrong_value_is_one_line_at_construction(
    variable: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError) as caught:
        StagedEngine(HandEngine())
    assert str(caught.value) == named


def test_off_is_the_default_and_declines_to_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNIX_STAGE_BATCH", raising=False)
    with StagedEngine(HandEngine()) as wrapped:
        # Not even looked at: this one could never be staged.
        answer = wrapped.stage_batch(object(), key="a")
        assert isinstance(answer, Declined)
        assert answer.key == "a"
        assert "staging is off; set TUNIX_STAGE_BATCH, or TrainerSettings, to stage or serialize" in answer.reason
        assert wrapped.stage_batch(payload(1), key="b") == Declined("b", answer.reason)
        assert wrapped.queue.keys == ()
        assert wrapped.queue.statistics.staged == 0
        assert live() == []
        assert repr(wrapped) == "StagedEngine(HandEngine, off)"
        assert "forebay-promoter" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("key", [None, "a"])
def test_off_passes_the_very_same_payload_to_the_engine(key: str | None) -> None:
    got: list[Any] = []

    class AnyEngine:
        def fwd_bwd(self, batch: Any, **options: Any) -> Any:
            got.append((batch, options))
            return batch

        def update(self, **options: Any) -> Any:
            return options

    tree = payload(1, wide=np.zeros(2, np.int64))
    for given in (tree, object(), [1, 2]):
        with staged(AnyEngine(), "off") as wrapped:
            wrapped.stage_batch(given, key="a")
            assert wrapped.fwd_bwd(given, stage_key=key, n=1) is given
            assert wrapped.update(rate=1) == {"rate": 1}
            assert live() == []
        batch, options = got.pop()
        assert batch is given
        assert options == {"n": 1}
    assert isinstance(tree["x"], np.ndarray)


def test_off_unwraps_what_is_prepared() -> None:
    engine = HandEngine()
    with staged(engine, "off") as wrapped:
        wrapped.fwd_bwd(Prepared({"x": jax.device_put(payload(3)["x"])}))
    assert engine.trained == [3]


def test_off_says_that_it_is_off_where_no_payload_was_given() -> None:
    engine = HandEngine()
    with staged(engine, "off") as wrapped:
        wrapped.stage_batch(payload(1), key="a")
        with pytest.raises(NotStagedError, match="no micro-batch with the key 'a' is staged: staging is off"):
            wrapped.fwd_bwd(stage_key="a")
        with pytest.raises(NotStagedError, match="no micro-batch is staged: staging is off"):
            wrapped.fwd_bwd()
    assert engine.options == []


@pytest.mark.parametrize("mode", ["off", "stage", "serialize"])
def test_a_closed_engine_trains_and_stages_nothing_in_any_mode(mode: str) -> None:
    called = threading.Event()

    class Engine:
        def fwd_bwd(self, _batch: Any) -> None:
            called.set()

        def update(self) -> None:
            called.set()

    wrapped = staged(Engine(), mode)
    wrapped.close()
    for call in (
        lambda: wrapped.stage_batch(payload(1), key="a"),
        lambda: wrapped.fwd_bwd(payload(1)),
        lambda: wrapped.fwd_bwd(Prepared({})),
    ):
        with pytest.raises(ClosedError, match="the staged engine is closed; use it inside its with block"):
            call()
    assert not called.is_set()
    wrapped.close()
