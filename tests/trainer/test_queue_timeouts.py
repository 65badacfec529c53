"""A wait that ends by its timeout says what it waited for, and changes nothing."""

from __future__ import annotations

import math

import pytest

from forebay.trainer.entry_states import EntryState
from forebay.wire import UsageError, WaitTimeoutError

from .fake_transfer import payload
from .queue_bench import Bench, bench_of
from .waiting import Call

S = EntryState


def test_a_take_that_times_out_says_what_it_waited_for_and_leaves_the_queue_as_it_was(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    for key, name in (("a", "micro-batch 'a'"), (None, "the next micro-batch")):
        with pytest.raises(WaitTimeoutError) as caught:
            bench.queue.take(key, timeout_s=0)
        assert str(caught.value).startswith(f"waited 0 s for {name} to be on the device; StagingQueue(stage, [")
        assert str(caught.value).endswith("; see what the device and the trainer's other threads do")
    assert bench.keys() == ("a",)
    assert bench.queue._parts.books._takers == 0
    assert not bench.queue._parts.books._wanted


def test_a_put_that_times_out_says_that_a_transfer_is_under_way(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    with pytest.raises(WaitTimeoutError, match=r"^waited 0 s for the transfer under way to end; StagingQueue\("):
        bench.queue.put(payload("x"), timeout_s=0)
    bench.transfer.let_go(all_after=True)
    bench.watch.until_state("a", S.ON_DEVICE)
    assert bench.queue.statistics.inline_steps == 0
    bench.stage("b")
    with bench.queue.take():
        pass
    bench.watch.until_state("b", S.ON_DEVICE)


def test_a_put_that_waits_for_its_entry_says_so_when_it_times_out(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    with pytest.raises(WaitTimeoutError, match=r"^waited 0 s for micro-batch 'a' to be on the device; "):
        bench.queue.put(payload("a"), key="a", timeout_s=0)


def test_a_serialized_stage_that_times_out_says_what_it_waited_for_and_the_entry_is_queued() -> None:
    with bench_of(mode="serialize") as bench:
        bench.transfer.hold()
        with pytest.raises(WaitTimeoutError, match=r"^waited 0 s for the transfer of 'a'; StagingQueue\("):
            bench.queue.stage(payload("a"), key="a", timeout_s=0)
        assert bench.keys() == ("a",)


def test_serialized_work_that_times_out_was_not_handed_to_the_device() -> None:
    with bench_of(mode="serialize") as bench:
        bench.transfer.hold()
        stage = Call(lambda: bench.queue.stage(payload("a"), key="a"))
        bench.transfer.wait_until_begun()
        was_run = False
        with (
            pytest.raises(
                WaitTimeoutError,
                match=r"^waited 0 s for the transfer under way to end before work is handed to the device; ",
            ),
            bench.queue.dispatching(timeout_s=0),
        ):
            was_run = True
        assert not was_run
        bench.transfer.let_go(all_after=True)
        assert stage.result().on_device


def test_a_serialized_put_that_times_out_says_that_the_device_is_not_done() -> None:
    with bench_of(mode="serialize") as bench:
        what = r"^waited 0 s for the device to finish what was dispatched; "
        with bench.queue.dispatching(), pytest.raises(WaitTimeoutError, match=what):
            bench.queue.put(payload("x"), timeout_s=0)
        with bench.queue.dispatching(timeout_s=0):
            pass


@pytest.mark.parametrize("timeout_s", [-1, math.nan])
def test_a_timeout_that_is_no_time_is_refused(bench: Bench, timeout_s: float) -> None:
    for call in (
        lambda: bench.queue.take(timeout_s=timeout_s),
        lambda: bench.queue.put(payload("a"), timeout_s=timeout_s),
        lambda: bench.queue.stage(payload("a"), key="a", timeout_s=timeout_s),
    ):
        with pytest.raises(UsageError, match="0 s or more"):
            call()
    assert bench.keys() == ()


def test_a_wait_without_an_end_is_possible(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    take = Call(lambda: bench.queue.take("a", timeout_s=math.inf))
    put = Call(lambda: bench.queue.put(payload("x"), timeout_s=math.inf))
    bench.transfer.let_go(all_after=True)
    with take.result() as batch:
        assert batch.key == "a"
    with put.result():
        pass
