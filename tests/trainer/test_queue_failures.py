"""A transfer that fails is told to who asks, keeps nothing alive, and the queue serves on."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forebay.trainer import NotStagedError, PromotionError, StageFail
from forebay.trainer.entry_states import EntryState
from forebay.wire import ForebayError, TreeError

from .fake_transfer import payload
from .queue_bench import Bench, bench_of, events_of, name_of_batch
from .waiting import Call

S = EntryState


def test_a_promotion_that_failed_is_told_to_who_asks_and_the_next_take_succeeds(bench: Bench) -> None:
    bench.transfer.fail_with["a"] = RuntimeError("no memory")
    bench.stage("a")
    bench.watch.settle()
    bench.stage("b")
    bench.watch.settle()
    assert bench.keys() == ("a", "b")
    bench.transfer.fail_with["a"] = failure = RuntimeError("still no memory")
    with pytest.raises(PromotionError) as caught:
        bench.queue.take("a")
    assert str(caught.value) == (
        "micro-batch 'a' could not be promoted: RuntimeError: still no memory;"
        " it keeps its place: make room on the device and ask for it again"
    )
    assert caught.value.__cause__ is failure
    assert bench.keys() == ("a", "b")
    assert name_of_batch(bench.queue.take("a")) == "a"
    assert bench.keys() == ("b",)
    assert bench.queue.statistics.failures == 2


def test_a_keyless_take_hears_why_the_head_could_not_come_and_does_not_skip_it(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    take = Call(bench.queue.take)
    bench.watch.until_wanted(None)
    bench.transfer.fail_with["a"] = RuntimeError("no memory")
    bench.transfer.let_go(all_after=True)
    assert isinstance(take.error(), PromotionError)
    bench.stage("b")
    assert bench.keys() == ("a", "b")
    assert name_of_batch(bench.queue.take()) == "a"


@pytest.mark.parametrize("error", [RuntimeError("no memory"), SystemExit(1), KeyboardInterrupt()])
def test_whatever_a_transfer_raises_the_queue_serves_on(bench: Bench, error: BaseException) -> None:
    bench.transfer.fail_with["a"] = error
    bench.stage("a")
    bench.watch.settle()
    assert name_of_batch(bench.queue.take()) == "a"


@pytest.mark.parametrize("error", [RuntimeError("no memory"), SystemExit(1)])
def test_whatever_bringing_an_entry_back_raises_the_queue_serves_on(bench: Bench, error: BaseException) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    bench.transfer.fail_fetch_with["a"] = error
    failure = Call(lambda: bench.queue.take("b")).error()
    assert isinstance(failure, PromotionError)
    assert str(failure) == (
        "micro-batch 'b' could not be promoted: 'a' is on the device before it and could not be brought back:"
        f" {type(error).__name__}: {error}; take them in order, or raise TUNIX_STAGE_MAX_DEVICE_BATCHES,"
        " or reset the queue"
    )
    assert bench.counts() == (1, 1, 0)
    assert [name_of_batch(bench.queue.take()) for _ in range(2)] == ["a", "b"]


def test_an_entry_that_can_never_be_had_is_rejected_and_told_once(bench: Bench) -> None:
    bench.transfer.fail_with["a"] = failure = TreeError("leaf x cannot be had on the device")
    bench.stage("a", "b")
    bench.watch.settle()
    assert bench.keys() == ("a", "b")
    assert bench.counts() == (1, 1, 0)
    with pytest.raises(TreeError) as caught:
        bench.queue.take()
    assert caught.value is failure
    assert bench.keys() == ("b",)
    with pytest.raises(NotStagedError):
        bench.queue.take("a")
    assert bench.drops() == {"rejected": 1}
    assert name_of_batch(bench.queue.take()) == "b"


def test_failures_are_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.transfer.fail_with["a"] = RuntimeError("no\nmemory")
    bench.transfer.fail_with["b"] = TreeError("bad leaf")
    bench.stage("a", "b")
    bench.watch.settle()
    events = events_of(caplog)
    assert [(event.key, event.is_final) for event in events if isinstance(event, StageFail)] == [
        ("a", False),
        ("b", True),
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.records[1].getMessage() == "STAGE_FAIL key=b final=True reason=TreeError('bad leaf')"
    assert "\n" not in caplog.records[0].getMessage()


@pytest.mark.parametrize("cause", ["keyless", "missing", "mismatch"])
def test_a_payload_that_could_not_be_transferred_is_told_and_the_queue_serves_on(
    bench: Bench, cause: str, warnings_given: Callable[[], list[str]]
) -> None:
    bench.stage("b")
    if cause == "mismatch":
        bench.queue.stage(payload("staged"), key="a")
    bench.watch.settle()
    bench.transfer.fail_with["a"] = failure = RuntimeError("no memory")
    with pytest.raises(PromotionError, match=r"^the payload .*transferred: RuntimeError: no memory; ") as caught:
        bench.queue.put(payload("a"), key=None if cause == "keyless" else "a")
    assert caught.value.__cause__ is failure
    numbers = bench.queue.statistics
    assert (numbers.inline_steps, bench.keys(), bench.inline()) == (0, ("b",), {cause: 1})
    assert bench.queue._parts.books.room.allows_transfer
    bench.stage("c")
    assert [name_of_batch(bench.queue.take()) for _ in range(2)] == ["b", "c"]
    assert len(warnings_given()) == (cause == "mismatch")


def test_a_payload_that_is_no_micro_batch_changes_nothing(bench: Bench) -> None:
    bench.stage("a")
    bench.watch.settle()
    for call in (
        lambda: bench.queue.stage({"x": object()}, key="a"),
        lambda: bench.queue.put({"x": object()}, key="a"),
    ):
        with pytest.raises(TreeError):
            call()
    assert bench.keys() == ("a",)
    assert (bench.drops(), bench.inline(), bench.queue.statistics.staged) == ({}, {}, 1)


def test_a_serialized_stage_tells_of_a_failed_transfer_and_the_entry_is_queued() -> None:
    with bench_of(mode="serialize") as bench:
        bench.transfer.fail_with["a"] = RuntimeError("no memory")
        with pytest.raises(PromotionError, match="no memory"):
            bench.queue.stage(payload("a"), key="a")
        assert bench.keys() == ("a",)
        assert name_of_batch(bench.queue.take("a")) == "a"


def test_a_serialized_stage_of_what_can_never_be_had_leaves_nothing_queued() -> None:
    with bench_of(mode="serialize") as bench:
        bench.transfer.fail_with["a"] = TreeError("leaf x cannot be had on the device")
        with pytest.raises(TreeError):
            bench.queue.stage(payload("a"), key="a")
        assert bench.keys() == ()


def test_a_failure_that_is_kept_keeps_no_device_arrays_alive(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    bench.transfer.fail_fetch_with["a"] = RuntimeError("no memory")
    failure: ForebayError | None = None
    try:
        bench.queue.take("b")
    except PromotionError as error:
        failure = error
    bench.watch.settle()
    bench.queue.reset()
    assert failure is not None
    assert bench.transfer.live == []


def test_a_failure_keeps_no_host_arrays_alive_when_its_entry_is_gone(bench: Bench) -> None:
    freed = threading.Event()
    bench.transfer.fail_with["a"] = RuntimeError("no memory")
    gc.collect()
    gc.disable()
    try:
        bench.queue.stage(payload("a", leaf=FreedArray.of(freed)), key="a")
        bench.watch.settle()
        assert not freed.is_set()
        bench.queue.reset()
        assert freed.is_set()
    finally:
        gc.enable()


class FreedArray:
    """Makes arrays of which it can be seen when their memory is freed."""

    def __init__(self, freed: threading.Event) -> None:
        self._freed = freed
        self._memory = np.zeros(4, np.float32)

    def __del__(self) -> None:
        self._freed.set()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    @staticmethod
    def of(freed: threading.Event) -> Any:
        return np.asarray(FreedArray(freed))
