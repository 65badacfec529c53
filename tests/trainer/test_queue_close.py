"""A closed or dropped queue ends its thread, frees the device, and says so to who asks."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable

import pytest

from forebay.trainer import NotStagedError, StagingQueue, TrainerSettings
from forebay.wire import ClosedError

from .fake_transfer import FakeTransfer, payload
from .queue_bench import Bench, bench_of, name_in
from .waiting import WAIT_S, Call


def test_a_closed_queue_does_nothing_and_says_so(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.settle()
    bench.queue.close()
    bench.queue.close()
    calls: list[Callable[[], object]] = [
        lambda: bench.queue.take(),
        lambda: bench.queue.take("a"),
        lambda: bench.queue.put(payload("x")),
        lambda: bench.queue.put(payload("a"), key="a"),
        lambda: bench.queue.stage(payload("c"), key="c"),
        lambda: bench.queue.bypass({}),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match=r"^the staging queue is closed; use it inside its with block$"):
            call()
    assert bench.keys() == ()
    assert bench.transfer.log == ["issue a", "complete a"]
    assert bench.counts() == (0, 0, 0)


def test_closing_frees_what_is_on_the_device(bench: Bench) -> None:
    bench.stage_on_device("a")
    bench.watch.settle()
    bench.queue.close()
    assert bench.transfer.live == []


def test_closing_waits_for_the_transfer_under_way_and_begins_no_other() -> None:
    with bench_of(cap=2) as bench:
        bench.hold_a_promotion("a")
        bench.stage("b")
        close = Call(bench.queue.close)
        bench.watch.until(lambda: bench.queue._parts.closed)
        assert not close.is_done
        bench.transfer.let_go(all_after=True)
        close.result()
        assert bench.transfer.log == ["issue a", "complete a"]


def test_who_waits_hears_that_the_queue_was_closed(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    bench.stage("b")
    takes = [Call(functools.partial(bench.queue.take, key)) for key in ("a", "b", None)]
    for key in ("a", "b"):
        bench.watch.until_wanted(key)
    close = Call(bench.queue.close)
    assert all(isinstance(take.error(), ClosedError | NotStagedError) for take in takes)
    bench.transfer.let_go(all_after=True)
    close.result()


def test_a_step_may_end_after_the_queue_was_closed(bench: Bench) -> None:
    bench.stage("a")
    with bench.queue.take() as batch:
        bench.queue.close()
        assert name_in(batch) == "a"
    assert bench.counts() == (0, 0, 0)
    bench.transfer.wait_until_live()


def test_a_queue_that_is_dropped_without_being_closed_ends_its_thread_and_frees_the_device() -> None:
    transfer = FakeTransfer()
    queue = StagingQueue(transfer, settings=TrainerSettings(stage_batch="stage", max_device_batches=1))
    queue.stage(payload("a"), key="a")
    queue.stage(payload("b"), key="b")
    with queue.take():
        pass
    thread = transfer.issued_on["a"]
    assert thread.is_alive()
    with pytest.warns(ResourceWarning, match="was never closed"):
        del queue
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    del thread
    transfer.issued_on.clear()
    gc.collect()
    assert transfer.live == []


def test_a_queue_that_is_never_used_starts_no_thread() -> None:
    before = set(threading.enumerate())
    with StagingQueue(FakeTransfer(), settings=TrainerSettings()) as queue:
        assert set(threading.enumerate()) <= before
        assert queue.keys == ()


def test_a_batch_that_nobody_closes_is_warned_of(bench: Bench) -> None:
    bench.stage("a")
    batch = bench.queue.take()
    with pytest.warns(ResourceWarning, match=r"^Batch\('a', 16 bytes, in use\) was never closed$"):
        del batch
