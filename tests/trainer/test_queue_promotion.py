"""When the next entry is promoted, and that no step waits for a lock meanwhile."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable

import pytest

from forebay.trainer.entry_states import EntryState
from forebay.trainer.host_tree import PlacedTree
from forebay.trainer.transfer import OnDevice

from .fake_transfer import FakeArrays, FakeTransfer, FakeWork, payload
from .queue_bench import Bench, bench_of
from .waiting import WAIT_S, Call

S = EntryState


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
    entry = bench.queue._parts.books.find("a")
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
        transfer.changed, transfer.link = bench.queue._parts.changed, bench.queue._parts.link
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
    bench.watch.until(lambda: not bench.queue._parts.books.room.allows_transfer)
    assert bench.transfer.log == ["issue a"]
    bench.transfer.let_go(all_after=True)
    with put.result():
        assert bench.transfer.log == ["issue a", "complete a", "issue x", "complete x"]
