"""What the orchestrator sends is what the trainer's run is made of, in every mode; here both in one process."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest

import forebay
from forebay.demo.batches import key_of, micro_batches
from forebay.demo.endpoints import Endpoints
from forebay.demo.micro_batch import TrainExample
from forebay.demo.model import init_params
from forebay.demo.settings import FINISH, DemoSettings, Mode
from forebay.demo.trainer import serve, train_in_process
from forebay.demo.training import TrainingRun, differences
from forebay.orchestrator_client import MicroBatch, StageAhead, TrainerHandle
from forebay.wire import Array

TIMEOUT_S = 60.0


@pytest.fixture
def helper() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def endpoints() -> Iterator[Endpoints]:
    with forebay.local_daemon(drain_s=0) as daemon:
        yield Endpoints.in_pool(daemon.pool, control=daemon.control_endpoint, trainer=daemon.trainer_endpoint)
    assert not daemon.pool.exists()


def one_bit_off(example: TrainExample[Array]) -> TrainExample[Array]:
    assert example.routed_experts is not None
    changed = example.routed_experts.copy()
    changed.reshape(-1).view(np.uint8)[-1] ^= 1
    return dataclasses.replace(example, routed_experts=changed)


async def send(settings: DemoSettings, endpoints: Endpoints, changed: str) -> None:
    async def source() -> AsyncIterator[MicroBatch]:
        for key, example in micro_batches(settings):
            yield MicroBatch(
                one_bit_off(example) if key == changed else example,
                key=key,
                ends_step=key.endswith(f"{settings.micro_batches - 1:04d}"),
            )

    async with TrainerHandle(endpoints.worker, control_endpoint=endpoints.control, timeout_s=TIMEOUT_S) as trainer:
        async with StageAhead(trainer, source()) as ahead:
            async for step in ahead:
                async for _ in step:
                    pass
                await trainer.update()
        await trainer.call(FINISH)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Mode))
def test_one_bit_that_changes_on_the_way_is_found_and_named(
    mode: Mode, endpoints: Endpoints, helper: Executor
) -> None:
    settings = DemoSettings(steps=2, micro_batches=2, payload_mib=0.5, mode=mode)
    served, plain = (TrainingRun(init_params(0), helper) for _ in range(2))
    trainer = threading.Thread(target=serve, args=(served, endpoints, settings))
    trainer.start()
    try:
        asyncio.run(asyncio.wait_for(send(settings, endpoints, changed=key_of(1, 0)), TIMEOUT_S))
    finally:
        trainer.join(TIMEOUT_S)
    assert not trainer.is_alive()
    train_in_process(plain, settings)
    found = differences(served, plain)
    assert found[0].startswith("micro-batch 2 routed_experts: int16")
    assert not any(" leaf" in line or "micro-batch 1" in line or "micro-batch 3" in line for line in found)
