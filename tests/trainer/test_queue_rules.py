"""Serialized work, waits that end, turns on the device, and what a daemon and a log must hear."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import jax
import numpy as np
import pytest

from forebay.trainer import JaxTransfer, StagingQueue
from forebay.trainer.entry_states import EntryState
from forebay.trainer.host_tree import HostTree
from forebay.trainer.queue_books import Await
from forebay.wire import Finished, Lend, WaitTimeoutError

from .books_desk import Desk as BooksDesk
from .books_desk import placed_tree
from .fake_transfer import FakeWork, payload
from .feed_desk import Desk, FakeReader, RecordedLink, feed_of, finished, lend, promoted, transfer_of
from .queue_bench import Bench, bench_of
from .waiting import WAIT_S, Call, Watch

S = EntryState


def test_serialized_what_seems_done_is_waited_for_before_a_transfer_all_the_same() -> None:
    # It seems done when its smallest output is there; the others may be on their way.
    desk = BooksDesk(2, serialize=True)
    desk.add("a", "b", "c")
    desk.bring(2)
    work = desk.work_of_a_step("a")
    work.finish()
    desk.room.runs(None, holds_inputs=False)  # an update whose outputs cannot be watched
    assert desk.books.next_work() == Await(work)


def test_a_wait_that_ends_without_its_entry_lets_that_be_brought_back_for_another(bench: Bench) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    parts = bench.queue._parts
    # One that waits for a, and will give up before it sees that a is there.
    waiting = parts.wanting("a")
    with parts.changed:
        waiting.__enter__()
    take = Call(lambda: bench.queue.take("b"))
    while not parts.books._wanted["b"]:
        bench.watch.settle()
    bench.watch.settle()
    assert bench.transfer.log == ["issue a", "complete a"]
    with parts.changed:
        waiting.__exit__(None, None, None)
    with take.result() as batch:
        assert batch.key == "b"


def test_a_key_that_is_trained_by_prepared_arrays_is_reported_consumed_at_the_end_of_its_step(
    link: RecordedLink, queue: StagingQueue
) -> None:
    with queue.bypass({"x": 1}, key="a") as batch:
        batch.dispatched()
        assert link.reports == []
    assert link.reports == [Finished(holder="", key="a")]
    # What comes for it now would train it a second time.
    feed_of(queue).lent(lend("a", 4, 2))
    assert queue.keys == ()
    assert link.reports[1:] == [finished("a", 4, 2)]


@pytest.mark.parametrize("how", ["promoted", "dropped"])
def test_nothing_refers_to_a_slots_bytes_after_it_was_released(
    how: str, desk: Desk, link: RecordedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[weakref.ref[Any]] = []
    read = FakeReader.read

    def watched(self: FakeReader, lend: Lend) -> tuple[str, HostTree]:
        attempt, tree = read(self, lend)
        views.extend(weakref.ref(leaf) for leaf in tree.leaves)
        return attempt, tree

    monkeypatch.setattr(FakeReader, "read", watched)
    desk.feed.lent(lend("a"))
    entry = desk.books.find("a")
    assert entry is not None
    origin = entry.origin
    if how == "promoted":
        work = desk.begin("a")
        # As the promoter does, and the device has a copy.
        placed = desk.transfer.place(origin.read())
        on_device = desk.transfer.complete(placed, desk.transfer.issue(placed))
        on_device.arrays[0].placed = None
        desk.books.arrived(work, on_device)
        del placed, work
        assert link.reports == [promoted("a")]
    else:
        desk.books.drop(entry, "test", "dropped")
        assert link.reports == [finished("a", 0, reason="dropped")]
    assert views
    assert [view() for view in views] == [None]
    del origin


def test_a_promotion_is_logged_without_the_bookkeeping_lock(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    # A handler of the log may be slow.
    is_free: list[bool] = []
    changed = bench.queue._parts.changed

    def take_lock() -> bool:
        if not changed.acquire(timeout=WAIT_S / 4):
            return False
        changed.release()
        return True

    class Handler(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            is_free.append(Call(take_lock).result())

    caplog.set_level(logging.INFO, "forebay.trainer")
    logger, handler = logging.getLogger("forebay.trainer"), Handler()
    logger.addHandler(handler)
    try:
        bench.stage_on_device("a")
        bench.watch.settle()
    finally:
        logger.removeHandler(handler)
    assert is_free == [True]


class LateArray:
    """A device array whose bytes come later."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array
        self.is_there = False

    def __getattr__(self, name: str) -> Any:
        assert self.is_there, f"{name} was looked at before the bytes were there"
        return getattr(self._array, name)

    def block_until_ready(self) -> None:
        self.is_there = True


def test_a_transfer_is_complete_when_every_leaf_is_there() -> None:
    transfer = JaxTransfer()
    placed = transfer.place(transfer.take_apart({"a": np.zeros(3, np.float32), "b": np.zeros(0, np.float32)}))
    late = [LateArray(array) for array in transfer.issue(placed)]
    transfer.complete(placed, late)  # type: ignore[arg-type]
    assert [array.is_there for array in late] == [True, True]


def test_what_is_lent_and_what_is_staged_in_process_are_handed_out_in_one_order(
    link: RecordedLink, queue: StagingQueue
) -> None:
    del link
    for slot, key in enumerate("abcd"):
        if slot % 2:
            feed_of(queue).lent(lend(key, slot))
        else:
            queue.stage(payload(key), key=key)
    assert queue.keys == ("a", "b", "c", "d")
    got: list[str] = []
    for _ in range(4):
        with queue.take() as batch:
            got.append(batch.key)
    assert got == ["a", "b", "c", "d"]
    issued = [line for line in transfer_of(queue).log if line.startswith("issue")]
    assert issued == ["issue a", "issue b", "issue c", "issue d"]


def test_what_was_brought_back_keeps_its_turn_on_the_device() -> None:
    desk = BooksDesk(2)
    desk.add("a", "b", "c", "d")
    desk.bring(2)
    desk.books.want("b")
    desk.books.want("c")
    work = desk.begin_demotion()
    assert work.entry.key == "a"
    desk.books.returned(work.entry, placed_tree("a"))
    assert desk.arrive(desk.begin()).key == "c"
    for key in ("b", "c"):
        desk.books.dispatched(desk.take(key), None)
        desk.books.unwant(key)
    assert [entry.key for entry in desk.bring(2)] == ["a", "d"]


def test_an_update_that_runs_keeps_no_transfer_waiting(bench: Bench) -> None:
    bench.stage("a", "b")
    step, update = FakeWork(), FakeWork()
    with bench.queue.take() as batch, bench.queue.dispatching():
        bench.queue.runs(update)
        batch.dispatched(step)
    bench.watch.until_state("b", S.ON_DEVICE)
    assert not step.waited_for.is_set()
    assert not update.waited_for.is_set()


def test_off_a_queue_works_as_in_stage() -> None:
    with bench_of(mode="off") as bench:
        bench.transfer.hold()
        assert not bench.queue.stage(payload("a"), key="a", timeout_s=0).on_device
        bench.transfer.wait_until_begun()
        with bench.queue.dispatching(timeout_s=0):
            assert bench.counts() == (1, 0, 0)


def test_of_two_keyless_steps_that_wait_one_may_give_up() -> None:
    desk = BooksDesk(1)
    desk.add("a", "b")
    desk.books.want("b")
    assert desk.arrive(desk.begin()).key == "b"
    desk.books.unwant("b")
    for _ in range(2):
        desk.books.want(None)
    desk.books.unwant(None)
    work = desk.begin_demotion()
    assert (work.entry.key, work.wanted.key) == ("b", "a")


def test_serialized_transfers_begin_again_after_work_timed_out() -> None:
    with bench_of(mode="serialize", cap=2) as bench:
        bench.transfer.hold()
        first = Call(lambda: bench.queue.stage(payload("a"), key="a"))
        bench.transfer.wait_until_begun()
        with pytest.raises(WaitTimeoutError), bench.queue.dispatching(timeout_s=0):
            pass
        bench.transfer.let_go(all_after=True)
        assert first.result().on_device
        assert bench.queue.stage(payload("b"), key="b", timeout_s=WAIT_S).on_device


@pytest.mark.parametrize("fails", [False, True])
def test_the_promoter_releases_a_slot_when_its_transfer_is_complete_and_not_before(
    fails: bool, link: RecordedLink, queue: StagingQueue
) -> None:
    feed, transfer, watch = feed_of(queue), transfer_of(queue), Watch(queue)
    transfer.hold()
    feed.lent(lend("a", 3, 7))
    transfer.wait_until_begun()
    assert (feed.held(), link.reports) == (((3, 7),), [])
    if fails:
        transfer.fail_with["a"] = RuntimeError("no memory")
    transfer.let_go(all_after=True)
    watch.settle()
    if fails:
        assert (feed.held(), link.reports) == (((3, 7),), [])
    else:
        assert (feed.held(), link.reports) == ((), [promoted("a", 3, 7)])
