"""Losses, gradients and weights are the same bits in all modes as without Forebay."""

from __future__ import annotations

import queue as queues
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.trainer import StagedEngine

from .engines import staged
from .training_engine import TrainingEngine, micro_batch
from .waiting import WAIT_S

pytestmark = pytest.mark.usefixtures("nothing_is_left")


MICRO_BATCHES = 12
UPDATE_EVERY = 4


def is_inline(number: int) -> bool:
    return number % 5 == 3


def train_plainly(devices: int) -> list[bytes]:
    """Trains without Forebay."""
    engine = TrainingEngine(devices)
    for number in range(MICRO_BATCHES):
        engine.fwd_bwd(micro_batch(number), scale=number)
        if number % UPDATE_EVERY == UPDATE_EVERY - 1:
            engine.update()
    return engine.trace()


def stage_ahead(wrapped: StagedEngine, told: queues.SimpleQueue[int]) -> None:
    for number in range(MICRO_BATCHES):
        if not is_inline(number):
            wrapped.stage_batch(micro_batch(number), key=f"k{number}", timeout_s=WAIT_S)
        told.put(number)


def train_staged(devices: int, mode: str, cap: int, others: ThreadPoolExecutor) -> list[bytes]:
    """Trains with another thread that stages ahead, and with payloads of all kinds in between."""
    engine = TrainingEngine(devices)
    told: queues.SimpleQueue[int] = queues.SimpleQueue()
    with staged(engine, mode, cap, shardings=engine.programs.shardings | {"policy": None}) as wrapped:
        ahead = others.submit(stage_ahead, wrapped, told)
        for _ in range(MICRO_BATCHES):
            number = told.get(timeout=WAIT_S)
            key = None if number % 10 == 3 else f"k{number}"
            # Off has nothing but the payload; the other modes get one where it was not staged, and now and then.
            given = mode == "off" or is_inline(number) or number % 4 == 1
            wrapped.fwd_bwd(micro_batch(number) if given else None, key, scale=number)
            if number % UPDATE_EVERY == UPDATE_EVERY - 1:
                wrapped.update()
        ahead.result(WAIT_S)
        counts = wrapped.queue.statistics
        if mode != "off":
            assert (counts.taken, counts.promotions) == (10, 10 + counts.demotions)
            assert counts.inline == {"keyless": 1, "missing": 1}
        assert (counts.queued, counts.on_device, counts.in_step, counts.inline_steps) == (0, 0, 0, 0)
        assert not counts.drops
    assert engine.moved == [], "the program had to move a leaf"
    return engine.trace()


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_losses_gradients_and_weights_are_bit_identical_in_all_modes(
    devices: int, others: ThreadPoolExecutor
) -> None:
    plain = train_plainly(devices)
    assert len(set(plain)) > MICRO_BATCHES, "the micro-batches do not differ"
    for mode, cap in [("off", 1)] + [(mode, cap) for mode in ("stage", "serialize") for cap in (1, 2, 0)]:
        assert train_staged(devices, mode, cap, others) == plain, (mode, cap)
