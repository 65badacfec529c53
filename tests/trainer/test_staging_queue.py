"""The staging queue with real threads and no device: what overlaps, what waits, what is told."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import logging
import math
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from forebay.trainer import (
    Batch,
    NotStagedError,
    PromotionError,
    Queued,
    StageDemote,
    StageFail,
    StagePromote,
    StagingQueue,
    TrainerSettings,
)
from forebay.trainer.entry import Entry, InProcess
from forebay.trainer.entry_states import EntryState
from forebay.trainer.host_tree import PlacedTree
from forebay.trainer.once import OneWarning
from forebay.trainer.transfer import OnDevice
from forebay.wire import ClosedError, ForebayError, TreeError, UsageError, WaitTimeoutError

from .fake_transfer import WAIT_S, Call, FakeArrays, FakeTransfer, FakeWork, Watch, payload

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


@pytest.fixture
def bench() -> Iterator[Bench]:
    with bench_of() as bench:
        yield bench


def name_in(batch: Batch) -> str:
    name = batch.tree["name"]
    assert isinstance(name, str)
    return name


def staged_arrays(batch: Batch) -> FakeArrays:
    arrays, _ = batch.tree["leaf"]
    assert isinstance(arrays, FakeArrays)
    return arrays


# What a step gets. First that who waits is told at all: else each test would pass after a very long time.


def test_who_waits_for_an_entry_is_told_of_its_arrival(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    take = Call(lambda: batch_key(bench.queue.take("a")))
    bench.watch.until_wanted("a")
    bench.transfer.let_go(all_after=True)
    assert take.result() == "a"


def test_what_was_staged_is_taken_in_order(bench: Bench) -> None:
    bench.stage("a", "b", "c")
    for name in "abc":
        with bench.queue.take() as batch:
            assert (batch.key, name_in(batch), batch.host_bytes) == (name, name, 16)
    assert bench.counts() == (0, 0, 0)
    assert bench.transfer.log == [f"{what} {name}" for name in "abc" for what in ("issue", "complete")]


def test_staging_tells_what_became_of_the_payload(bench: Bench) -> None:
    assert bench.queue.stage(payload("a"), key="a") == Queued("a", on_device=False, replaced=False)
    assert bench.queue.stage(payload("a"), key="a") == Queued("a", on_device=False, replaced=True)


def test_a_key_that_is_not_the_head_is_taken_and_the_others_keep_their_order(bench: Bench) -> None:
    bench.stage("a", "b", "c")
    bench.watch.until_state("a", S.ON_DEVICE)
    with bench.queue.take("c") as batch:
        assert name_in(batch) == "c"
        assert bench.keys() == ("a", "b")
    assert [batch_key(bench.queue.take()) for _ in range(2)] == ["a", "b"]


def batch_key(batch: Batch) -> str:
    with batch:
        return batch.key


def test_a_key_taken_out_of_order_never_has_more_on_the_device_than_the_cap(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    with bench.queue.take("b"):
        assert bench.transfer.log == ["issue a", "complete a", "fetch a", "issue b", "complete b"]
        bench.watch.settle()
        bench.transfer.wait_until_live("b")
        assert bench.counts() == (1, 0, 1)
    assert bench.queue.statistics.demotions == 1


def test_over_the_cap_entries_stay_on_the_host_and_use_no_device_memory(bench: Bench) -> None:
    bench.stage("a", "b", "c")
    bench.watch.settle()
    assert bench.transfer.live == ["a"]
    assert bench.counts() == (2, 1, 0)
    with bench.queue.take():
        bench.watch.settle()
        assert bench.transfer.live == ["a"]
        assert bench.counts() == (2, 0, 1)


def test_without_a_cap_all_that_is_staged_comes_to_the_device() -> None:
    with bench_of(cap=0) as bench:
        bench.stage(*"abcde")
        bench.watch.settle()
        assert bench.counts() == (0, 5, 0)
        assert bench.transfer.live == list("abcde")


def test_the_arrays_of_a_finished_batch_are_let_go(bench: Bench) -> None:
    bench.stage("a")
    with bench.queue.take() as batch:
        assert bench.transfer.live == ["a"]
    bench.transfer.wait_until_live()
    with pytest.raises(ClosedError):
        _ = batch.tree


# When the next one is promoted.


def test_the_next_entry_is_promoted_when_a_step_is_dispatched_and_not_by_its_caller(bench: Bench) -> None:
    bench.stage("a", "b")
    with bench.queue.take() as batch:
        bench.watch.settle()
        assert "issue b" not in bench.transfer.log
        batch.dispatched()
        bench.watch.until_state("b", S.ON_DEVICE)
    assert bench.transfer.issued_on["b"] is not threading.current_thread()
    assert bench.transfer.issued_on["b"] is bench.transfer.issued_on["a"]


def test_a_step_that_fails_has_the_next_entry_promoted_as_well(bench: Bench) -> None:
    bench.stage("a", "b")
    with pytest.raises(ArithmeticError), bench.queue.take():
        raise ArithmeticError
    bench.watch.until_state("b", S.ON_DEVICE)
    assert bench.transfer.issued_on["b"] is not threading.current_thread()
    bench.transfer.wait_until_live("b")


def test_the_caller_of_dispatched_does_not_wait_for_the_next_transfer(bench: Bench) -> None:
    bench.stage("a", "b")
    with bench.queue.take() as batch:
        bench.transfer.wait_until_begun()
        bench.transfer.hold()
        batch.dispatched()
    bench.transfer.wait_until_begun()
    assert bench.transfer.log == ["issue a", "complete a", "issue b"]
    assert bench.counts() == (1, 0, 0)


def test_a_step_that_uses_no_staged_entry_has_what_failed_before_tried_again(bench: Bench) -> None:
    bench.transfer.fail_with["a"] = RuntimeError("no memory")
    bench.stage("a")
    bench.watch.settle()
    assert bench.counts() == (1, 0, 0)
    with bench.queue.put(payload("x")):
        bench.watch.settle()
        assert bench.counts() == (1, 0, 0)
    bench.watch.until_state("a", S.ON_DEVICE)


@pytest.mark.usefixtures("warnings_given")
def test_a_drop_begins_no_transfer_before_the_steps_own(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    bench.transfer.hold()
    bench.transfer.wait_until_begun()
    put = Call(lambda: bench.queue.put(payload("a", more=1), key="a"))
    bench.transfer.wait_until_begun()
    bench.watch.settle()  # the promoter has seen the room, and leaves it
    assert bench.transfer.log == ["issue a", "complete a", "issue a"]
    bench.transfer.let_go(all_after=True)
    with put.result() as batch:
        assert batch.tree["more"] == 1
        bench.watch.until_state("b", S.ON_DEVICE)
    assert bench.transfer.log == ["issue a", "complete a", "issue a", "complete a", "issue b", "complete b"]


def test_a_drop_leaves_no_moment_in_which_another_transfer_could_begin_before_the_steps_own(
    bench: Bench, warnings_given: Callable[[], list[str]]
) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    entry = bench.queue._state.books.find("a")
    assert entry is not None
    assert entry.on_device is not None
    # While the dropped arrays are freed, without the lock, the promoter has all the time to look.
    weakref.finalize(entry.on_device.arrays[0], bench.watch.settle)
    del entry
    with bench.queue.put(payload("a", more=1), key="a"):
        bench.watch.until_state("b", S.ON_DEVICE)
    assert bench.transfer.log == ["issue a", "complete a", "issue a", "complete a", "issue b", "complete b"]
    assert len(warnings_given()) == 1


def test_the_next_entry_waits_until_the_device_is_one_step_behind(bench: Bench) -> None:
    bench.stage("a", "b", "c")
    works = [FakeWork(), FakeWork()]
    for work in works:
        with bench.queue.take() as batch:
            batch.dispatched(work)
    assert works[0].waited_for.wait(WAIT_S)
    assert bench.counts() == (1, 0, 0)
    assert "issue c" not in bench.transfer.log
    works[0].finish()
    bench.watch.until_state("c", S.ON_DEVICE)
    assert not works[1].waited_for.is_set()


# The two locks.


def test_an_entry_on_the_device_is_taken_at_once_while_another_transfer_runs() -> None:
    with bench_of(cap=2) as bench:
        bench.stage_on_device("a")
        assert bench.transfer.begun.acquire(timeout=WAIT_S)
        bench.hold_a_promotion("b")
        with bench.queue.take("a", timeout_s=0) as batch:
            assert batch.key == "a"
            assert bench.transfer.log == ["issue a", "complete a", "issue b"]


class LockWatchingTransfer(FakeTransfer):
    """Has another thread take the bookkeeping lock whenever a transfer or a wait is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: threading.Condition | None = None
        self.link: threading.Lock | None = None
        self.unlinked_in: list[str] = []
        self.free_in: list[str] = []
        self.locked_in: list[str] = []

    def look(self, where: str) -> None:
        def take_lock() -> bool:
            assert self.changed is not None
            if not self.changed.acquire(timeout=WAIT_S / 4):
                return False
            self.changed.release()
            return True

        if where != "wait" and not (self.link and self.link.locked()):
            self.unlinked_in.append(where)
        (self.free_in if Call(take_lock).result() else self.locked_in).append(where)

    def issue(self, placed: PlacedTree) -> FakeArrays:
        self.look("issue")
        return super().issue(placed)

    def complete(self, placed: PlacedTree, issued: FakeArrays) -> OnDevice:
        self.look("complete")
        return super().complete(placed, issued)

    def fetch(self, on_device: OnDevice) -> PlacedTree:
        self.look("fetch")
        return super().fetch(on_device)


class LockWatchingWork(FakeWork):
    def __init__(self, transfer: LockWatchingTransfer) -> None:
        super().__init__(is_done=True)
        self._transfer = transfer

    def is_done(self) -> bool:
        return False

    def wait(self) -> None:
        self._transfer.look("wait")
        super().wait()


@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_the_bookkeeping_lock_is_free_during_every_transfer_and_wait(mode: str) -> None:
    transfer = LockWatchingTransfer()
    with bench_of(transfer, mode=mode) as bench:
        transfer.changed, transfer.link = bench.queue._state.changed, bench.queue._state.link
        bench.stage("a", "b", "c")
        bench.watch.until_state("a", S.ON_DEVICE)
        for key in ("b", "a", "c"):
            with bench.queue.take(key) as batch:
                batch.dispatched(LockWatchingWork(transfer))
        with bench.queue.put(payload("x")) as batch:
            batch.dispatched(LockWatchingWork(transfer))
    # a, b, a again, c and x; a brought back once. In both modes the device is waited for.
    counts = {where: transfer.free_in.count(where) for where in ("issue", "complete", "fetch")}
    assert counts == {"issue": 5, "complete": 5, "fetch": 1}
    assert "wait" in transfer.free_in
    assert not transfer.unlinked_in
    assert not transfer.locked_in
    assert len(transfer.log) == 11


@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_transfers_never_overlap_whoever_asks_for_them(mode: str) -> None:
    with bench_of(cap=2, mode=mode) as bench:

        def stage_and_take(thread: int) -> int:
            for turn in range(20):
                key = f"{thread}-{turn}"
                bench.queue.stage(payload(key), key=key)
                with bench.queue.put(payload("x")):
                    pass
                with bench.queue.take(key):
                    pass
            return thread

        calls = [Call(functools.partial(stage_and_take, thread)) for thread in range(6)]
        assert [call.result() for call in calls] == list(range(6))
        assert bench.transfer.most_at_once == 1
        assert bench.queue.statistics.taken == 120
        assert bench.inline() == {"keyless": 120}


def test_a_step_with_its_own_payload_waits_for_the_transfer_under_way(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    put = Call(lambda: bench.queue.put(payload("x")))
    bench.watch.until(lambda: bench.queue._state.books.room.is_taken_by_a_step)
    assert bench.transfer.log == ["issue a"]
    bench.transfer.let_go(all_after=True)
    with put.result():
        assert bench.transfer.log == ["issue a", "complete a", "issue x", "complete x"]


# The same key again.


def test_staging_a_key_again_replaces_it_in_place(bench: Bench) -> None:
    bench.stage("a", "b", "c")
    bench.watch.settle()
    assert bench.queue.stage(payload("new"), key="b").replaced
    assert bench.keys() == ("a", "b", "c")
    assert [name_of_batch(bench.queue.take()) for _ in range(3)] == ["a", "new", "c"]
    assert bench.drops() == {"replaced": 1}


def name_of_batch(batch: Batch) -> str:
    with batch:
        return name_in(batch)


def test_the_arrays_of_a_replaced_entry_on_the_device_are_freed(bench: Bench) -> None:
    bench.stage_on_device("a")
    bench.transfer.hold()
    bench.queue.stage(payload("new"), key="a")
    bench.transfer.wait_until_live("new")
    assert bench.counts() == (1, 0, 0)
    bench.transfer.let_go(all_after=True)
    bench.watch.until_state("a", S.ON_DEVICE)
    assert bench.counts() == (0, 1, 0)
    assert name_of_batch(bench.queue.take("a")) == "new"


def test_the_arrays_of_an_entry_replaced_in_mid_transfer_are_freed_when_that_is_over(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    bench.queue.stage(payload("new"), key="a")
    assert bench.counts() == (1, 0, 0)
    assert bench.transfer.live == ["a"]
    bench.transfer.let_go()
    bench.transfer.wait_until_begun()
    bench.transfer.wait_until_live("new")
    assert bench.transfer.log == ["issue a", "complete a", "issue new"]
    assert bench.counts() == (1, 0, 0)
    bench.transfer.let_go(all_after=True)
    bench.watch.until_state("a", S.ON_DEVICE)
    assert bench.counts() == (0, 1, 0)
    assert name_of_batch(bench.queue.take("a")) == "new"


def test_the_arrays_of_an_entry_replaced_while_it_is_brought_back_are_freed(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    bench.transfer.wait_until_begun()
    bench.transfer.hold()
    take = Call(lambda: bench.queue.take("b"))
    bench.transfer.wait_until_begun()
    bench.watch.until_state("a", S.DEMOTING)
    bench.queue.stage(payload("new"), key="a")
    bench.transfer.let_go(all_after=True)
    with take.result() as batch:
        assert name_in(batch) == "b"
        bench.transfer.wait_until_live("b")
        assert bench.keys() == ("a",)
    assert name_of_batch(bench.queue.take()) == "new"


# Steps with a payload of their own.


def test_a_payload_without_a_key_leaves_all_that_is_queued_as_it_is(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.settle()
    with bench.queue.put(payload("a")) as batch:
        assert (batch.key, name_in(batch), batch.promote_s) == ("", "a", 0.0)
        assert bench.keys() == ("a", "b")
        assert bench.counts() == (1, 1, 0)
        assert bench.queue.statistics.inline_steps == 1
    assert bench.keys() == ("a", "b")
    assert bench.inline() == {"keyless": 1}
    assert bench.drops() == {}
    assert bench.queue.statistics.taken == 0


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other values of its arrays": (payload("a"), payload("a", leaf=np.ones(4, np.float32))),
    "another order of the keys": (payload("a", x=1, y=2), {"y": 2, "x": 1, **payload("a")}),
    "not a number": (payload("a", x=math.nan), payload("a", x=math.nan)),
    "another copy of a string": (payload("a", x="ab"), payload("a", x="".join(["a", "b"]))),
}
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one leaf more": (payload("a"), payload("a", more=np.zeros(1, np.int8))),
    "another key": (payload("a", x=1), payload("a", y=1)),
    "a list for a tuple": (payload("a", x=[np.zeros(1)]), payload("a", x=(np.zeros(1),))),
    "a leaf for a static value": (payload("a", x=1), payload("a", x=np.array(1))),
    "another shape": (payload("a"), payload("a", leaf=np.zeros(5, np.float32))),
    "as many elements in another shape": (payload("a"), payload("a", leaf=np.zeros((2, 2), np.float32))),
    "another dtype": (payload("a"), payload("a", leaf=np.zeros(4, np.int32))),
    "another static value": (payload("a", x=1), payload("a", x=2)),
    "True for 1": (payload("a", x=1), payload("a", x=True)),
    "1.0 for 1": (payload("a", x=1), payload("a", x=1.0)),
    "-0.0 for 0.0": (payload("a", x=0.0), payload("a", x=-0.0)),
    "None for False": (payload("a", x=False), payload("a", x=None)),
}


@pytest.fixture
def warnings_given(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Lets the warning of a process be given anew; returns how to see which were."""
    monkeypatch.setattr("forebay.trainer.steps.mismatch_warning", OneWarning("STAGE_MISMATCH key=%s"))
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("difference", SAME)
def test_a_payload_that_is_the_same_as_the_entry_gets_the_entry(
    bench: Bench, difference: str, where: str, warnings_given: Callable[[], list[str]]
) -> None:
    staged, given = SAME[difference]
    if where == "host":
        bench.stage("before")
    bench.queue.stage(staged, key="a")
    bench.watch.settle()
    with bench.queue.put(given, key="a") as batch:
        assert staged_arrays(batch).placed.tree.leaves[0] is staged["leaf"]
        assert bench.keys() == (("before",) if where == "host" else ())
    assert bench.transfer.log.count("issue a") == 1
    assert (bench.queue.statistics.taken, bench.inline(), bench.drops()) == (1, {}, {})
    assert not [line for line in warnings_given() if line.startswith("STAGE_MISMATCH")]


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("difference", OTHER)
def test_a_payload_that_differs_is_transferred_and_the_entry_dropped(
    bench: Bench, difference: str, where: str, warnings_given: Callable[[], list[str]]
) -> None:
    staged, given = OTHER[difference]
    if where == "host":
        bench.stage("before")
    bench.queue.stage(staged, key="a")
    bench.stage("after")
    bench.watch.settle()
    with bench.queue.put(given, key="a") as batch:
        assert staged_arrays(batch).placed.tree.leaves[0] is given["leaf"]
        assert batch.key == "a"
    assert bench.keys() == (("before", "after") if where == "host" else ("after",))
    assert (bench.queue.statistics.taken, bench.inline(), bench.drops()) == (0, {"mismatch": 1}, {"mismatch": 1})
    assert warnings_given() == ["STAGE_MISMATCH key=a"]


def test_a_mismatch_is_warned_of_once_in_the_process_and_counted_each_time(
    warnings_given: Callable[[], list[str]],
) -> None:
    for _ in range(2):
        with bench_of() as bench:
            for name in "ab":
                bench.stage(name)
                with bench.queue.put(payload(name, more=1), key=name):
                    pass
            assert bench.inline() == bench.drops() == {"mismatch": 2}
    assert warnings_given() == ["STAGE_MISMATCH key=a"]


def test_a_step_is_given_the_payload_if_its_entry_was_replaced_by_another_kind_while_it_waited(
    bench: Bench, warnings_given: Callable[[], list[str]]
) -> None:
    bench.hold_a_promotion("a")
    put = Call(lambda: bench.queue.put(payload("a"), key="a"))
    bench.watch.until_wanted("a")
    bench.queue.stage(payload("a", more=1), key="a")
    bench.transfer.let_go(all_after=True)
    with put.result() as batch:
        assert "more" not in batch.tree
    assert bench.inline() == {"mismatch": 1}
    assert bench.drops() == {"replaced": 1, "mismatch": 1}
    assert warnings_given() == ["STAGE_MISMATCH key=a"]


def test_a_payload_for_a_key_that_is_not_staged_is_transferred_and_counted(
    bench: Bench, warnings_given: Callable[[], list[str]]
) -> None:
    bench.stage("b")
    with bench.queue.put(payload("a"), key="a") as batch:
        assert (batch.key, name_in(batch)) == ("a", "a")
    assert bench.keys() == ("b",)
    assert (bench.inline(), bench.drops(), warnings_given()) == ({"missing": 1}, {}, [])


def test_asking_for_a_key_that_is_not_staged_names_it_and_those_that_are(bench: Bench) -> None:
    bench.stage("a", "b")
    with pytest.raises(NotStagedError) as caught:
        bench.queue.take("x")
    assert str(caught.value) == (
        "no micro-batch with the key 'x' is staged; got staged keys ['a', 'b'];"
        " stage it first, or pass it as the payload"
    )
    assert bench.keys() == ("a", "b")


def test_asking_an_empty_queue_says_so(bench: Bench) -> None:
    with pytest.raises(NotStagedError, match=r"^no micro-batch is staged; got staged keys \[\];"):
        bench.queue.take()


def test_what_is_on_the_device_already_bypasses_the_queue(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.settle()
    tree = {"x": object()}
    with bench.queue.bypass(tree) as batch:
        assert (batch.tree, batch.key, batch.host_bytes) == (tree, "", 0)
        assert bench.queue.statistics.inline_steps == 1
    assert bench.keys() == ("a", "b")
    assert bench.counts() == (1, 1, 0)
    assert (bench.queue.statistics.prepared, bench.inline(), bench.drops()) == (1, {}, {})
    assert bench.transfer.log == ["issue a", "complete a"]


def test_what_is_on_the_device_already_takes_the_place_of_the_entry_with_its_key(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.settle()
    with bench.queue.bypass({"x": 1}, key="a") as batch:
        assert batch.key == "a"
        assert bench.keys() == ("b",)
        assert "a" not in bench.transfer.live
    assert bench.drops() == {"prepared": 1}


def test_who_waits_for_a_key_hears_that_another_step_has_trained_it_by_prepared_arrays(bench: Bench) -> None:
    bench.stage("a", "b")
    with bench.queue.take("a"):
        take = Call(lambda: bench.queue.take("b"))
        bench.watch.until_wanted("b")
        bench.watch.settle()
        with bench.queue.bypass({"x": 1}, key="b"):
            assert isinstance(take.error(), NotStagedError)


# Reset.


def test_a_transfer_under_way_does_not_come_back_after_a_reset(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    bench.stage("b")
    bench.queue.reset()
    assert bench.keys() == ()
    assert bench.counts() == (0, 0, 0)
    bench.transfer.let_go(all_after=True)
    bench.transfer.wait_until_live()
    bench.watch.settle()
    assert bench.keys() == ()
    assert bench.counts() == (0, 0, 0)
    assert bench.transfer.log == ["issue a", "complete a"]
    with pytest.raises(NotStagedError):
        bench.queue.take("a")


def test_all_counts_are_zero_after_a_reset_also_when_a_transfer_was_under_way(bench: Bench) -> None:
    bench.stage_on_device("a")
    bench.transfer.wait_until_begun()
    with bench.queue.take():
        pass
    bench.hold_a_promotion("b")
    bench.queue.reset()
    fresh = StagingQueue(FakeTransfer(), settings=bench.queue.settings).statistics
    assert bench.queue.statistics == fresh
    bench.transfer.let_go(all_after=True)
    bench.transfer.wait_until_live()
    bench.watch.settle()
    assert bench.queue.statistics == fresh


def test_a_reset_frees_what_is_on_the_device(bench: Bench) -> None:
    bench.stage_on_device("a")
    bench.watch.settle()
    bench.queue.reset()
    assert bench.transfer.live == []


def test_a_step_keeps_its_batch_through_a_reset(bench: Bench) -> None:
    bench.stage("a", "b")
    with bench.queue.take() as batch:
        bench.queue.reset()
        assert name_in(batch) == "a"
        assert bench.counts() == (0, 0, 1)
        bench.stage("c")
        bench.watch.settle()
        assert bench.transfer.live == ["a"]
    bench.watch.until_state("c", S.ON_DEVICE)


def test_who_waits_for_an_entry_hears_of_a_reset(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    take = Call(lambda: bench.queue.take("a"))
    bench.watch.until_wanted("a")
    bench.queue.reset()
    assert isinstance(take.error(), NotStagedError)


# Told to people and programs.


def events_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.__dict__["event"] for record in caplog.records if "event" in record.__dict__]


def test_each_promotion_is_logged_and_the_record_carries_the_same_numbers(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    bench.stage("a", "b")
    with bench.queue.take():
        pass
    bench.watch.settle()
    records = [record for record in caplog.records if record.getMessage().startswith("STAGE_PROMOTE")]
    for record, key in zip(records, "ab", strict=True):
        line = record.getMessage()
        seconds = r"\d+\.\d{6}"
        assert re.fullmatch(
            rf"STAGE_PROMOTE key={key} host_bytes=16 wait_prev_s={seconds} issue_s={seconds}"
            rf" queued=\d on_device=1",
            line,
        ), line
        assert (record.levelno, record.name) == (logging.INFO, "forebay.trainer")
        event = record.__dict__["event"]
        assert isinstance(event, StagePromote)
        assert line == (
            f"STAGE_PROMOTE key={event.key} host_bytes={event.host_bytes} wait_prev_s={event.wait_prev_s:.6f}"
            f" issue_s={event.issue_s:.6f} queued={event.queued} on_device={event.on_device}"
        )
        assert event.transfer_s >= event.issue_s >= 0
    last = records[-1].__dict__["event"]
    assert (last.queued, last.on_device) == (0, 1)


def test_the_logged_wait_is_the_wait_for_what_came_before(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    bench.stage("a", "b", "c")
    work = FakeWork()
    for outputs in (work, None):
        with bench.queue.take() as batch:
            batch.dispatched(outputs)
    bench.watch.settle()
    numbers = bench.queue.statistics
    events = [event for event in events_of(caplog) if isinstance(event, StagePromote)]
    assert numbers.promotions == len(events) == 3
    assert numbers.promoted_bytes == sum(event.host_bytes for event in events) == 48
    assert numbers.wait_prev_s == pytest.approx(sum(event.wait_prev_s for event in events))
    assert numbers.issue_s == pytest.approx(sum(event.issue_s for event in events))
    assert numbers.transfer_s == pytest.approx(sum(event.transfer_s for event in events))


def test_a_wait_for_the_device_is_logged_with_the_promotion_that_waited_and_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    monkeypatch.setattr("forebay.trainer.promoter.time", TickingClock())
    bench.stage("a", "b", "c", "d")
    first, second = FakeWork(), FakeWork()
    for work in (first, second):
        with bench.queue.take() as batch:
            batch.dispatched(work)
    assert first.waited_for.wait(WAIT_S)
    first.finish()
    with bench.queue.take():
        pass
    bench.watch.settle()
    events = [event for event in events_of(caplog) if isinstance(event, StagePromote)]
    # One tick for the transfer lock of each; and one for the device.
    assert [event.wait_prev_s for event in events] == [1, 1, 2, 1]
    assert [(event.issue_s, event.transfer_s) for event in events] == [(1, 2)] * 4


class TickingClock:
    """A clock that is read once a second."""

    def __init__(self) -> None:
        self._seconds = 0

    def monotonic(self) -> float:
        self._seconds += 1
        return float(self._seconds)


def test_an_entry_that_is_brought_back_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    with bench.queue.take("b"):
        pass
    (event,) = [event for event in events_of(caplog) if isinstance(event, StageDemote)]
    assert (event.key, event.wanted, event.host_bytes) == ("a", "b", 16)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [f"STAGE_DEMOTE key=a wanted=b host_bytes=16 transfer_s={event.transfer_s:.6f}"]


def test_a_key_cannot_break_a_log_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    bench.queue.stage(payload("a"), key="a\nSTAGE_PROMOTE\x1b[2J")
    bench.watch.settle()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(r"STAGE_PROMOTE key=a\nSTAGE_PROMOTE\x1b[2J host_bytes=16 ")


def test_statistics_cannot_be_changed_and_do_not_change(bench: Bench) -> None:
    before = bench.queue.statistics
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.queued = 1  # type: ignore[misc]
    for mapping in (before.inline, before.drops):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]
    with bench.queue.put(payload("x")):
        pass
    assert dict(before.inline) == {}
    assert before.inline_steps == 0


def test_statistics_show_what_is_there_and_what_happened(bench: Bench) -> None:
    assert repr(bench.queue.statistics) == (
        "QueueStats(queued=0, on_device=0, in_step=0, staged=0, promoted=0, taken=0)"
    )
    bench.transfer.fail_with["c"] = RuntimeError("no memory")
    bench.stage("a", "b", "a")
    bench.watch.settle()
    with bench.queue.take("a"), bench.queue.put(payload("x")):
        assert repr(bench.queue.statistics) == (
            f"QueueStats(queued=1, on_device=0, in_step=2, staged=3, promoted={bench.queue.statistics.promotions},"
            " taken=1, inline_keyless=1, dropped_replaced=1)"
        )
    with bench.queue.take("b"):
        pass
    bench.stage("c")
    bench.watch.settle()
    assert repr(bench.queue.statistics).endswith("taken=2, inline_keyless=1, dropped_replaced=1, failures=1)")


def test_a_queue_shows_its_entries_the_room_and_what_its_thread_does(bench: Bench) -> None:
    room = "of 1 on the device, 0 in a step, 0 running, promoter idle)"
    assert repr(bench.queue) == f"StagingQueue(stage, [], 0 {room}"
    bench.stage("a", "b")
    bench.watch.settle()
    assert repr(bench.queue) == f"StagingQueue(stage, ['a' on_device, 'b' host], 1 {room}"


def test_a_queue_shows_for_how_long_its_thread_does_what() -> None:
    with bench_of(cap=0, mode="stage") as bench:
        bench.hold_a_promotion("a")
        assert re.fullmatch(
            r"StagingQueue\(stage, \['a' promoting\], 1 of inf on the device, 0 in a step, 0 running,"
            r" promoter promoting 'a' for \d+\.\d s\)",
            repr(bench.queue),
        )


def test_a_serializing_queue_shows_that_its_thread_waits_for_the_device() -> None:
    with bench_of(mode="serialize") as bench:
        bench.stage("a", "b")
        work = FakeWork()
        with bench.queue.take() as batch:
            batch.dispatched(work)
        assert work.waited_for.wait(WAIT_S)
        assert re.fullmatch(
            r"StagingQueue\(serialize, \['b' host\], 0 of 1 on the device, 0 in a step, 1 running,"
            r" promoter waiting for the device to finish what was dispatched for \d+\.\d s\)",
            repr(bench.queue),
        )
        work.finish()


def test_entries_and_batches_show_where_they_are(bench: Bench) -> None:
    assert repr(Entry("a", InProcess())) == "Entry('a', host)"
    bench.stage("a")
    with bench.queue.take() as batch:
        assert repr(batch) == "Batch('a', 16 bytes, in use)"
        batch.dispatched()
        assert repr(batch) == "Batch('a', 16 bytes, dispatched)"
    assert repr(batch) == "Batch('a', 16 bytes, finished)"


# Waits that end without what they waited for.


def test_a_take_that_times_out_says_what_it_waited_for_and_leaves_the_queue_as_it_was(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    for key, name in (("a", "micro-batch 'a'"), (None, "the next micro-batch")):
        with pytest.raises(WaitTimeoutError) as caught:
            bench.queue.take(key, timeout_s=0)
        assert str(caught.value).startswith(f"waited 0 s for {name} to be on the device; StagingQueue(stage, [")
        assert str(caught.value).endswith("; see what the device and the trainer's other threads do")
    assert bench.keys() == ("a",)
    assert bench.queue._state.books._takers == 0
    assert not bench.queue._state.books._wanted


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


def test_a_serialized_put_that_times_out_says_that_another_step_dispatches() -> None:
    with bench_of(mode="serialize") as bench:
        what = r"^waited 0 s for another step to hand its work to the device; "
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


# Transfers that fail.


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
        "micro-batch 'a' could not be promoted: still no memory;"
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
        f" {error}; take them in order, or raise TUNIX_STAGE_MAX_DEVICE_BATCHES, or reset the queue"
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
    with pytest.raises(PromotionError, match=r"^the payload .*could not be transferred: no memory; ") as caught:
        bench.queue.put(payload("a"), key=None if cause == "keyless" else "a")
    assert caught.value.__cause__ is failure
    numbers = bench.queue.statistics
    assert (numbers.inline_steps, bench.keys(), bench.inline()) == (0, ("b",), {cause: 1})
    assert not bench.queue._state.books.room.is_taken_by_a_step
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


# Several threads.


def test_of_several_who_wait_for_a_key_one_gets_it_and_the_others_hear_that_it_is_gone(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    calls = [Call(lambda: bench.queue.take("a")) for _ in range(4)]
    bench.watch.until_wanted("a", by=4)
    bench.transfer.let_go(all_after=True)
    errors = [call.error() for call in calls]
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", *["NotStagedError"] * 3]
    (batch,) = [call.result() for call, error in zip(calls, errors, strict=True) if error is None]
    assert name_of_batch(batch) == "a"
    assert bench.queue.statistics.taken == 1


def test_keyless_takes_of_several_threads_get_different_entries(bench: Bench) -> None:
    bench.transfer.hold()
    bench.stage(*"abcd")
    calls = [Call(lambda: name_of_batch(bench.queue.take())) for _ in range(4)]
    bench.watch.until_wanted(None, by=4)
    bench.transfer.let_go(all_after=True)
    assert sorted(call.result() for call in calls) == list("abcd")


def test_a_keyless_take_leaves_an_entry_that_another_thread_waits_for_by_its_key(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    bench.stage("b")
    keyed = Call(lambda: bench.queue.take("a"))
    bench.watch.until_wanted("a")
    keyless = Call(lambda: name_of_batch(bench.queue.take()))
    bench.watch.until_wanted(None)
    bench.transfer.let_go(all_after=True)
    assert name_of_batch(keyed.result()) == "a"
    assert keyless.result() == "b"


def test_a_take_that_began_before_its_key_was_replaced_gets_the_newer_one(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    take = Call(lambda: name_of_batch(bench.queue.take("a")))
    bench.watch.until_wanted("a")
    bench.queue.stage(payload("new"), key="a")
    bench.transfer.let_go(all_after=True)
    assert take.result() == "new"


# Serialized.


def test_serialized_staging_returns_when_the_transfer_is_complete() -> None:
    with bench_of(mode="serialize") as bench:
        bench.transfer.hold()
        stage = Call(lambda: bench.queue.stage(payload("a"), key="a"))
        bench.transfer.wait_until_begun()
        assert not stage.is_done
        assert bench.counts() == (1, 0, 0)
        bench.transfer.let_go(all_after=True)
        assert stage.result() == Queued("a", on_device=True, replaced=False)
        assert bench.counts() == (0, 1, 0)


def test_serialized_staging_does_not_return_because_something_else_changed_in_mid_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bench_of(mode="serialize") as bench:
        is_settled, looked = bench.queue._is_settled, threading.Semaphore(0)

        def look(entry: Entry) -> bool | None:
            found = is_settled(entry)
            looked.release()
            return found

        monkeypatch.setattr(bench.queue, "_is_settled", look)
        bench.transfer.hold()
        stage = Call(lambda: bench.queue.stage(payload("a"), key="a"))
        bench.transfer.wait_until_begun()
        assert looked.acquire(timeout=WAIT_S)
        with bench.queue._state.changed:
            bench.queue._state.changed.notify_all()
        assert looked.acquire(timeout=WAIT_S)
        bench.transfer.let_go(all_after=True)
        assert stage.result().on_device


def test_serialized_staging_over_the_cap_returns_at_once() -> None:
    with bench_of(mode="serialize") as bench:
        bench.stage("a")
        assert bench.queue.stage(payload("b"), key="b", timeout_s=0) == Queued(
            "b", on_device=False, replaced=False
        )


@pytest.mark.parametrize("inline", [False, True])
def test_serialized_a_transfer_begins_when_the_device_has_finished_all(*, inline: bool) -> None:
    with bench_of(mode="serialize") as bench:
        bench.stage("a", "b")
        step, update = FakeWork(), FakeWork()
        with bench.queue.take("a") as batch, bench.queue.dispatching():
            bench.queue.runs(update)
            if inline:
                bench.queue.reset()
            batch.dispatched(step)
        put = Call(lambda: bench.queue.put(payload("x"))) if inline else None
        for work in (update, step):
            assert work.waited_for.wait(WAIT_S)
            assert bench.transfer.log == ["issue a", "complete a"]
            work.finish()
        if put is None:
            bench.watch.until_state("b", S.ON_DEVICE)
        else:
            with put.result():
                pass
        assert bench.transfer.log[2:] == ["issue x", "complete x"] if inline else ["issue b", "complete b"]


def test_serialized_no_transfer_begins_while_a_step_hands_its_work_over() -> None:
    with bench_of(mode="serialize") as bench:
        with bench.queue.dispatching():
            stage = Call(lambda: bench.queue.stage(payload("a"), key="a"))
            bench.watch.until(lambda: bench.keys() == ("a",))
            bench.watch.settle()
            assert bench.transfer.log == []
        assert stage.result().on_device


def test_not_serialized_work_is_handed_over_while_a_transfer_runs(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    with bench.queue.dispatching(timeout_s=0):
        assert bench.counts() == (1, 0, 0)


# The end.


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
        bench.watch.until(lambda: bench.queue._state.closed)
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
    del queue
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    del thread
    transfer.issued_on.clear()
    gc.collect()
    assert transfer.live == []


def test_a_queue_that_is_never_used_starts_no_thread() -> None:
    before = threading.active_count()
    with StagingQueue(FakeTransfer(), settings=TrainerSettings()) as queue:
        assert threading.active_count() == before
        assert queue.keys == ()


def test_a_batch_that_nobody_closes_is_warned_of(bench: Bench) -> None:
    bench.stage("a")
    batch = bench.queue.take()
    with pytest.warns(ResourceWarning, match=r"^Batch\('a', 16 bytes, in use\) was never closed$"):
        del batch


def test_the_statistics_can_be_written_as_json(bench: Bench) -> None:
    bench.stage("a")
    bench.stage("a")
    numbers = json.loads(json.dumps(bench.queue.statistics.as_dict()))
    assert (numbers["staged"], numbers["drops"], numbers["inline"]) == (2, {"replaced": 1}, {})
