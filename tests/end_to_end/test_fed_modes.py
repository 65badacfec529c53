"""Whatever feeds the queue, in each mode it trains the same bits as without staging; serialized it waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import forebay
from forebay.trainer import JaxTransfer, StagedEngine, StagingQueue, TrainerSettings

from .fed_engine import FENCE, Attached, Engine, HeldOutput
from .fed_orchestrator import batch, keys, slots, stage, wait
from .processes import EVENT_S, StartDaemon

COUNT = 6


# --- the same bits ---


def bits_of(engine: StagedEngine, inner: Engine, step: Callable[[str], Any]) -> list[bytes]:
    """Trains each key by a step, with an update after every second; returns every bit that was computed."""
    for index, key in enumerate(keys(COUNT)):
        step(key)
        if index % 2:
            engine.update()
    return inner.bits


@pytest.fixture(scope="module")
def expected_bits() -> list[bytes]:
    """What comes out without any staging."""
    inner = Engine()
    with StagedEngine(inner, StagingQueue(JaxTransfer(), settings=TrainerSettings())) as engine:
        bits = bits_of(engine, inner, lambda key: engine.fwd_bwd(batch(key)))
    assert len(set(bits)) == 2 * COUNT + COUNT // 2
    return bits


def test_what_is_staged_in_process_makes_the_same_bits_as_without_staging(expected_bits: list[bytes]) -> None:
    inner = Engine()
    settings = TrainerSettings(stage_batch="stage")
    with StagedEngine(inner, StagingQueue(JaxTransfer(), settings=settings)) as engine:
        for key in keys(COUNT):
            engine.stage_batch(batch(key), key=key)
        bits = bits_of(engine, inner, lambda key: engine.fwd_bwd(stage_key=key, stage_timeout_s=EVENT_S))
    assert bits == expected_bits


@pytest.mark.parametrize("source", ["slots", "slots and process"])
@pytest.mark.parametrize(("mode", "cap"), [("stage", 1), ("stage", 0), ("serialize", 1), ("serialize", 2)])
def test_what_comes_from_slots_makes_the_same_bits_as_without_staging(
    start_daemon: StartDaemon, expected_bits: list[bytes], mode: str, cap: int, source: str
) -> None:
    daemon = start_daemon(slots=COUNT // 2)
    in_process = [] if source == "slots" else keys(COUNT)[1::2]
    with Attached(daemon, mode=mode, cap=cap) as engine, ThreadPoolExecutor(1) as pool:
        sender = pool.submit(stage, daemon, *(key for key in keys(COUNT) if key not in in_process))
        for key in in_process:
            engine.stage_batch(batch(key), key=key, timeout_s=EVENT_S)
        bits = bits_of(engine, engine.inner, lambda key: engine.fwd_bwd(stage_key=key, stage_timeout_s=EVENT_S))
        sender.result(EVENT_S)
        assert engine.queue.statistics.taken == COUNT
        assert engine.queue.statistics.inline == {"missing": 1}, "the fence and nothing else"
    assert bits == expected_bits


# --- serialize ---


def test_in_serialize_a_slot_is_transferred_only_when_the_device_has_finished_what_was_dispatched(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    outputs = {key: HeldOutput() for key in keys(2)}
    with Attached(daemon, mode="serialize", inside=outputs.get) as engine:
        engine.fence()
        stage(daemon, *keys(3))
        for index in range(2):
            key, following = f"k{index}", f"k{index + 1}"
            engine.fwd_bwd(stage_timeout_s=EVENT_S)
            assert outputs[key].waited_for.wait(EVENT_S)
            engine.fence()
            assert slots(daemon)[following] == "LENT"
            assert following not in engine.transfer.issued
            outputs[key].finish()
            assert wait(daemon, following, "on_device") == "on_device"
        engine.train(1)
        assert engine.trained == keys(3)
        assert engine.transfer.issued == [FENCE, *keys(3)]
        assert [wait(daemon, key) for key in keys(3)] == ["consumed"] * 3


def test_an_attached_queue_takes_mode_and_cap_from_the_launchers_variables(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNIX_STAGE_BATCH", "serialize")
    monkeypatch.setenv("TUNIX_STAGE_MAX_DEVICE_BATCHES", "2")
    daemon = start_daemon()
    inner = Engine()
    with StagedEngine(inner, forebay.attach(endpoint=daemon.trainer_endpoint)) as engine:
        assert repr(engine.queue).startswith("StagingQueue(serialize, [], 0 of 2 on the device")
        stage(daemon, *keys(3))
        for key in keys(3):
            engine.fwd_bwd(stage_key=key, stage_timeout_s=EVENT_S)
        assert inner.trained == keys(3)
        assert [wait(daemon, key) for key in keys(3)] == ["consumed"] * 3
