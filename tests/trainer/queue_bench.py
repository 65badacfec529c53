"""A staging queue over a transfer without a device, and how to look at its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.trainer import Batch, StagingQueue, TrainerSettings
from forebay.trainer.entry_states import EntryState

from .fake_transfer import FakeArrays, FakeTransfer, payload
from .waiting import Watch

S = EntryState


class Bench:
    """A queue over a fake transfer, and how to watch it."""

    def __init__(self, transfer: FakeTransfer, cap: int, mode: str) -> None:
        self.transfer = transfer
        self.queue = StagingQueue(transfer, settings=TrainerSettings(stage_batch=mode, max_device_batches=cap))
        self.watch = Watch(self.queue)

    def stage(self, *names: str) -> None:
        for name in names:
            self.queue.stage(payload(name), key=name)

    def stage_on_device(self, name: str) -> None:
        self.stage(name)
        self.watch.until_state(name, S.ON_DEVICE)

    def hold_a_promotion(self, name: str) -> None:
        """Stages an entry and returns when its transfer stands still."""
        self.transfer.hold()
        self.stage(name)
        self.transfer.wait_until_begun()

    def counts(self) -> tuple[int, int, int]:
        numbers = self.queue.statistics
        return numbers.queued, numbers.on_device, numbers.in_step

    def inline(self) -> dict[str, int]:
        return dict(self.queue.statistics.inline)

    def drops(self) -> dict[str, int]:
        return dict(self.queue.statistics.drops)

    def keys(self) -> tuple[str, ...]:
        return self.queue.keys


@contextlib.contextmanager
def bench_of(transfer: FakeTransfer | None = None, *, cap: int = 1, mode: str = "stage") -> Iterator[Bench]:
    bench = Bench(FakeTransfer() if transfer is None else transfer, cap, mode)
    try:
        yield bench
    finally:
        bench.transfer.let_go(all_after=True)
        bench.queue.close()


def name_in(batch: Batch) -> str:
    name = batch.tree["name"]
    assert isinstance(name, str)
    return name


def name_of_batch(batch: Batch) -> str:
    with batch:
        return name_in(batch)


def batch_key(batch: Batch) -> str:
    with batch:
        return batch.key


def staged_arrays(batch: Batch) -> FakeArrays:
    arrays, _ = batch.tree["leaf"]
    assert isinstance(arrays, FakeArrays)
    return arrays


def events_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.__dict__["event"] for record in caplog.records if "event" in record.__dict__]
