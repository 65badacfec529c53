"""What a user may get wrong around a staged engine is said where it happens."""

from __future__ import annotations

import logging
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from forebay.trainer import (
    JaxTransfer,
    Prepared,
    StagedEngine,
    StagingQueue,
    TrainerSettings,
    load_trainer_settings,
)
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.wire import TreeError, UsageError

from .engines import HandEngine, staged
from .fake_transfer import FakeTransfer
from .feed_desk import RecordedLink


def test_an_engine_without_the_two_methods_is_refused() -> None:
    with pytest.raises(UsageError, match="an engine to stage for; got object; limit fwd_bwd and update"):
        StagedEngine(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["off", "stage"])
def test_a_key_that_is_given_as_the_payload_is_refused(mode: str) -> None:
    engine = HandEngine()
    with staged(engine, mode) as wrapped, pytest.raises(UsageError, match="did you mean stage_key="):
        wrapped.fwd_bwd("a")
    assert engine.work == []


def test_a_leaf_that_is_on_the_device_is_named_with_the_way_to_pass_it() -> None:
    tree = {"x": np.zeros(2, np.float32), "y": [jnp.zeros(3)]}
    queue = StagingQueue(JaxTransfer(), settings=TrainerSettings(stage_batch="stage"))
    with queue, pytest.raises(TreeError, match=r"leaf \['y'\]\[0\] is on the device already; .*forebay\.Prepared"):
        queue.stage(tree, key="a")
    assert Prepared({"y": tree["y"]}).tree == {"y": tree["y"]}


class UpdatingEngine:
    """Remembers how it was updated."""

    def __init__(self) -> None:
        self.updates: list[tuple[Any, ...]] = []

    def fwd_bwd(self, batch: Any) -> None:
        """Uses nothing."""

    def update(self, *arguments: Any, **options: Any) -> int:
        self.updates.append((*arguments, options))
        return len(self.updates)


@pytest.mark.parametrize("mode", ["off", "stage", "serialize"])
def test_an_update_gets_all_that_it_is_called_with(mode: str) -> None:
    engine = UpdatingEngine()
    with staged(engine, mode) as wrapped:
        assert wrapped.update(1, 2, rate=0.5) == 1
    assert engine.updates == [(1, 2, {"rate": 0.5})]


@pytest.mark.parametrize("mode", ["off", "stage"])
def test_an_engine_that_takes_nothing_from_a_fed_queue_is_warned_of(
    mode: str,
    link: RecordedLink,  # noqa: ARG001
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = DaemonFeed("ipc:///unused", "train", timeout_s=1)
    queue = StagingQueue(FakeTransfer(), settings=TrainerSettings(stage_batch=mode), feed=feed)
    with StagedEngine(UpdatingEngine(), queue):
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [line.split(" ")[0] for line in lines] == (["STAGE_OFF"] if mode == "off" else [])


def test_what_is_given_wins_over_the_environment_and_leaves_the_rest_to_it() -> None:
    environment = {"TUNIX_STAGE_BATCH": "stage", "TUNIX_STAGE_MAX_DEVICE_BATCHES": "3"}
    settings = load_trainer_settings({"max_device_batches": 2, "stage_batch": None}, environment=environment)
    assert settings == TrainerSettings(stage_batch="stage", max_device_batches=2)


def test_a_long_wait_is_said_while_it_lasts_and_without_the_lock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forebay.trainer.queue_parts._SAY_AFTER_S", 0.0)
    transfer = FakeTransfer()
    queue = StagingQueue(transfer, settings=TrainerSettings(stage_batch="stage"))
    transfer.hold()

    class LetsGo(logging.Handler):
        """Needs the lock, on another thread's behalf, and then lets the transfer go."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("STAGE_WAIT"):
                transfer.let_go(all_after=True)

    log, handler = logging.getLogger("forebay.trainer"), LetsGo()
    log.addHandler(handler)
    try:
        with queue:
            queue.stage({"name": "a", "leaf": np.zeros(1, np.int8)}, key="a")
            queue.take("a", timeout_s=20).close()
    finally:
        log.removeHandler(handler)
    assert any(
        "STAGE_WAIT waited_s=0.000000 what=micro-batch 'a'" in record.getMessage() for record in caplog.records
    )
