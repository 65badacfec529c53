"""Thousands of operations from many threads: nothing twice, nothing lost, never over the cap, no deadlock."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import queue as queues
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from forebay.trainer import Batch, NotStagedError, PromotionError, StagingQueue, TrainerSettings
from forebay.trainer.feed import NoFeed
from forebay.trainer.host_tree import HostTree, PlacedTree

from .fake_transfer import FakeArrays, FakeTransfer, FakeWork
from .waiting import Watch

THREADS = 8
OPERATIONS = 500
DEADLOCK_S = 60.0
KEYS = tuple("abcdef")


class Fate:
    """The origin of one staged entry; it knows what became of it."""

    lock = threading.Lock()
    all: list[Fate]

    def __init__(self) -> None:
        self.transferred_times = 0
        self.ends: list[str] = []
        self.late = False
        with self.lock:
            self.all.append(self)

    def read(self) -> HostTree:
        raise AssertionError("it has its host tree from the start")

    def transferred(self) -> None:
        self.late |= bool(self.ends)
        self.transferred_times += 1

    def ended(self, reason: str) -> None:
        self.ends.append(reason)


class StressedTransfer(FakeTransfer):
    """Fails now and then, and looks at the cap from where the device would."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.queue: StagingQueue | None = None
        self.over_the_cap: list[str] = []
        self._random = random.Random(seed)

    def issue(self, placed: PlacedTree) -> FakeArrays:
        issued = super().issue(placed)
        self._check_cap()
        if self._random.random() < 0.02:
            self.fail_with[issued.name] = RuntimeError("no memory")
        return issued

    def fetch(self, on_device: Any) -> PlacedTree:
        (arrays,) = on_device.arrays
        if self._random.random() < 0.05:
            self.fail_fetch_with[arrays.name] = RuntimeError("no memory")
        return super().fetch(on_device)

    def _check_cap(self) -> None:
        assert self.queue is not None
        room = self.queue._parts.books.room
        with self.queue._parts.changed:
            if room.used > room.cap:
                self.over_the_cap.append(repr(self.queue))


class Stress:
    """Threads that do at random what a trainer may do, and the device that they share."""

    def __init__(self, cap: int, mode: str, seed: int) -> None:
        self.transfer = StressedTransfer(seed)
        settings = TrainerSettings(stage_batch=mode, max_device_batches=cap)
        self.queue = self.transfer.queue = StagingQueue(self.transfer, settings=settings)
        self.watch = Watch(self.queue)
        self.seed = seed
        self.errors: list[BaseException] = []
        self.device: queues.SimpleQueue[FakeWork | None] = queues.SimpleQueue()
        self.lock = threading.Lock()
        self.serials = 0
        self.staged: set[int] = set()
        self.taken: list[int] = []
        self.operations = 0

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._work, args=(number,), name=f"worker-{number}", daemon=True)
            for number in range(THREADS)
        ]
        device = threading.Thread(target=self._device, name="device", daemon=True)
        for thread in (device, *threads):
            thread.start()
        for thread in threads:
            thread.join(DEADLOCK_S)
            if thread.is_alive():
                faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
                pytest.fail(f"{thread.name} did not end: {self.queue!r}")
        self.device.put(None)
        device.join(DEADLOCK_S)
        assert not device.is_alive()
        if self.errors:
            raise self.errors[0]

    def _device(self) -> None:
        while (work := self.device.get()) is not None:
            work.finish()

    def _work(self, number: int) -> None:
        choose = random.Random(f"{self.seed}-{number}")
        try:
            for _ in range(OPERATIONS):
                self._do_something(choose)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.errors.append(error)

    def _do_something(self, choose: random.Random) -> None:
        key = choose.choice(KEYS)
        what, weights = zip(*self._operations(choose, key).items(), strict=True)
        # The key is not there, or the device has no memory just now: both are to be expected.
        with contextlib.suppress(NotStagedError, PromotionError):
            choose.choices(what, weights)[0]()
        with self.lock:
            self.operations += 1

    def _operations(self, choose: random.Random, key: str) -> dict[Callable[[], object], int]:
        queue, step, tree = self.queue, self._step, functools.partial(self._payload, key, choose)
        return {
            lambda: queue.stage(tree(is_staged=True), key=key): 40,
            lambda: step(queue.take(key), choose): 15,
            lambda: step(queue.take(), choose): 15,
            lambda: step(queue.put(tree()), choose): 4,
            lambda: step(queue.put(tree(), key=key), choose): 10,
            lambda: step(queue.put({**tree(), "other": 1}, key=key), choose): 6,
            lambda: step(queue.bypass({"leaf": None}, key=choose.choice([key, None])), choose): 3,
            queue.reset: 1,
            self._look: 6,
        }

    def _payload(self, key: str, choose: random.Random, *, is_staged: bool = False) -> dict[str, Any]:
        with self.lock:
            self.serials += 1
            if is_staged:
                self.staged.add(self.serials)
            return {"name": key, "leaf": np.full(choose.choice([3, 4]), self.serials)}

    def _step(self, batch: Batch, choose: random.Random) -> None:
        with contextlib.suppress(ArithmeticError), batch, self.queue.dispatching():
            self._note(batch)
            if choose.random() < 0.1:
                raise ArithmeticError
            work = FakeWork()
            batch.dispatched(work)
            self.device.put(work)

    def _note(self, batch: Batch) -> None:
        leaf = batch.tree["leaf"]
        if leaf is None:
            return
        arrays, index = leaf
        assert isinstance(arrays, FakeArrays)
        assert batch.key in {"", arrays.name}
        serial = int(arrays.placed.tree.leaves[index][0])
        with self.lock:
            self.taken.append(serial)

    def _look(self) -> None:
        numbers = self.queue.statistics
        totals = [numbers.staged, numbers.taken, numbers.promotions, numbers.demotions, numbers.failures]
        counts = [numbers.queued, numbers.on_device, numbers.in_step, numbers.inline_steps]
        assert min(*totals, *counts, *numbers.inline.values(), *numbers.drops.values(), 0) == 0, numbers
        cap = self.queue._parts.books.room.cap
        assert numbers.on_device + numbers.in_step <= cap, numbers
        assert numbers.queued + numbers.on_device <= len(KEYS), numbers
        assert repr(self.queue)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Has threads interrupt each other a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("cap", [1, 2, 0])
@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_whatever_many_threads_do_each_entry_is_taken_once_or_dropped_once(
    mode: str,
    cap: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NoFeed, "staged", lambda _self, _key: Fate())
    monkeypatch.setattr(Fate, "all", [], raising=False)
    stress = Stress(cap, mode, seed=cap * 10 + len(mode))
    try:
        stress.run()
        staged_taken = [serial for serial in stress.taken if serial in stress.staged]
        assert len(set(stress.taken)) == len(stress.taken), "a micro-batch was handed out twice"
        assert stress.operations == THREADS * OPERATIONS

        stress.queue.reset()
        stress.watch.settle()
        stress.transfer.wait_until_live()  # of all that was on the device nothing is left
        assert stress.queue.keys == ()
        numbers = stress.queue.statistics
        assert (numbers.queued, numbers.on_device, numbers.in_step, numbers.inline_steps) == (0, 0, 0, 0)

        assert len(Fate.all) == len(stress.staged)
        assert all(len(fate.ends) == 1 for fate in Fate.all), "an entry was lost, or ended twice"
        assert all(fate.transferred_times <= 1 and not fate.late for fate in Fate.all)
        of_steps = [fate for fate in Fate.all if fate.ends[0] in {"", "the trainer raised ArithmeticError"}]
        assert len(of_steps) == len(staged_taken) > 0
        assert all(fate.transferred_times == 1 for fate in of_steps)

        assert not stress.transfer.over_the_cap
        assert stress.transfer.most_at_once == 1
        assert 0 < len(staged_taken) < len(Fate.all)
    finally:
        stress.queue.close()
