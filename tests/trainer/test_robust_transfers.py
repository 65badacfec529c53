"""A device that never finishes, a machine without threads, and broken entries leave the queue as it was."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from forebay.trainer import JaxTransfer, StagingQueue
from forebay.trainer.entry_states import EntryState
from forebay.trainer.host_tree import HostTree
from forebay.wire import (
    Finished,
    HostError,
    Lend,
    TreeError,
    WaitTimeoutError,
)

from . import device_arrays
from .engines import HandEngine, staged
from .fake_transfer import FakeWork, payload
from .feed_desk import FakeReader, RecordedLink, feed_of, lend
from .queue_bench import Bench, bench_of, name_in, name_of_batch
from .waiting import WAIT_S, Call, Watch

S = EntryState


# --- serialize: a device that never finishes ---


def hand_over(bench: Bench) -> FakeWork:
    """Has the device work on something that it finishes when the test says so."""
    bench.stage("a")
    work = FakeWork()
    with bench.queue.take("a") as batch, bench.queue.dispatching():
        batch.dispatched(work)
    return work


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_a_serialized_put_hears_after_its_timeout_that_the_device_is_not_done_and_a_later_one_works(
    *, is_waited_for: bool
) -> None:
    with bench_of(mode="serialize") as bench:
        work = hand_over(bench)
        patient = Call(lambda: name_of_batch(bench.queue.put(payload("x")))) if is_waited_for else None
        if patient is not None:
            assert work.waited_for.wait(WAIT_S)
        for timeouts in range(1, 4):
            with pytest.raises(
                WaitTimeoutError, match=r"^waited 0 s for the device to finish what was dispatched"
            ):
                bench.queue.put(payload("y"), timeout_s=0)
            assert bench.inline() == {"keyless": timeouts + is_waited_for}
        assert bench.queue.statistics.inline_steps == 0
        assert bench.queue._parts.books.room.allows_transfer != is_waited_for
        assert bench.counts() == (0, 0, 0)
        assert bench.transfer.log == ["issue a", "complete a"]
        work.finish()
        if patient is not None:
            assert patient.result() == "x"
        assert name_of_batch(bench.queue.put(payload("z"), timeout_s=WAIT_S)) == "z"
        assert bench.queue.statistics.inline_steps == 0
        assert bench.queue.stage(payload("b"), key="b", timeout_s=WAIT_S).on_device


# --- a machine that has no more threads ---


@pytest.fixture
def no_thread_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next thread cannot be started."""
    start, refusals = threading.Thread.start, [RuntimeError("can't start new thread")]

    def start_or_refuse(thread: threading.Thread) -> None:
        if refusals:
            raise refusals.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)


@pytest.mark.usefixtures("no_thread_once")
def test_a_promoter_that_cannot_be_started_is_told_enters_nothing_and_is_started_by_the_next_call(
    bench: Bench,
) -> None:
    with pytest.raises(HostError, match="the promoter's thread cannot be started: can't start new thread"):
        bench.stage("a")
    assert bench.keys() == ()
    assert bench.queue.statistics.staged == 0
    assert not bench.queue._parts.is_in_use
    bench.stage("a")
    assert name_of_batch(bench.queue.take("a", timeout_s=WAIT_S)) == "a"
    bench.queue.close()


@pytest.mark.usefixtures("no_thread_once")
def test_a_queue_whose_promoter_could_not_be_started_can_be_closed(bench: Bench) -> None:
    with pytest.raises(HostError):
        bench.stage("a")
    bench.queue.close()
    assert bench.keys() == ()


@pytest.mark.usefixtures("no_thread_once")
@pytest.mark.parametrize("key", ["a", None])
def test_a_take_for_which_no_promoter_can_be_started_leaves_nothing_wanted(bench: Bench, key: str | None) -> None:
    with pytest.raises(HostError):
        bench.queue.take(key)
    books = bench.queue._parts.books
    assert (books._takers, dict(books._wanted)) == (0, {})
    bench.stage("a")
    assert name_of_batch(bench.queue.take(timeout_s=WAIT_S)) == "a"


# --- a payload in the place of a broken entry ---


def test_a_payload_is_used_where_its_entry_was_rejected(bench: Bench) -> None:
    bench.transfer.fail_with["a"] = TreeError("leaf x cannot be had on the device")
    bench.stage("a", "b")
    bench.watch.settle()
    assert bench.drops() == {"rejected": 1}
    with bench.queue.put(payload("a"), key="a", timeout_s=WAIT_S) as batch:
        assert name_in(batch) == "a"
    assert bench.inline() == {"rejected": 1}
    assert bench.drops() == {"rejected": 1}
    assert bench.keys() == ("b",)
    assert bench.queue.statistics.taken == 0


def test_a_payload_is_used_where_its_entry_is_rejected_while_it_waits(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    put = Call(lambda: bench.queue.put(payload("a"), key="a", timeout_s=WAIT_S))
    bench.watch.until_wanted("a")
    bench.transfer.fail_with["a"] = TreeError("leaf x cannot be had on the device")
    bench.transfer.let_go(all_after=True)
    with put.result() as batch:
        assert name_in(batch) == "a"
    assert (bench.inline(), bench.drops(), bench.keys()) == ({"rejected": 1}, {"rejected": 1}, ())


@pytest.mark.parametrize("moment", ["before the step", "in the step"])
def test_a_payload_is_used_where_its_slot_cannot_be_read(
    link: RecordedLink, queue: StagingQueue, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def read(_: FakeReader, lend: Lend) -> tuple[str, HostTree]:
        raise HostError(f"slot {lend.slot} cannot be mapped")

    monkeypatch.setattr(FakeReader, "read", read)
    watch = Watch(queue)
    if moment == "in the step":
        # The one before it has the room, so it was not read yet.
        queue.stage(payload("first"), key="first")
        watch.until_state("first", S.ON_DEVICE)
    feed_of(queue).lent(lend("a", 4, 2))
    watch.settle()
    with queue.put(payload("a"), key="a", timeout_s=WAIT_S) as batch:
        assert name_in(batch) == "a"
    assert queue.statistics.inline == {"rejected": 1}
    assert queue.statistics.drops == {"rejected": 1}
    slot, key = link.reports
    assert isinstance(slot, Finished)
    assert (slot.key, slot.slot, slot.generation) == ("a", 4, 2)
    assert "slot 4 cannot be mapped" in slot.reason
    assert key == Finished(holder="", key="a")


# --- leaves that JAX narrows ---


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("where", ["host", "device"])
def test_an_entry_that_was_narrowed_and_brought_back_is_still_the_same_as_its_payload(where: str) -> None:
    def wide(number: int) -> dict[str, Any]:
        return device_arrays.payload(number, wide=np.arange(3, dtype=np.int64))

    with staged(HandEngine(), transfer=JaxTransfer(cast_64bit=True)) as wrapped:
        queue = wrapped.queue
        watch = Watch(queue)
        for number, key in enumerate("ab"):
            queue.stage(wide(number), key=key)
        watch.until_state("a", S.ON_DEVICE)
        # a is brought back to the host for b, and comes to the device again after it.
        with queue.take("b", timeout_s=WAIT_S) as batch:
            assert queue.statistics.demotions == 1
            put = Call(lambda: queue.put(wide(0), key="a", timeout_s=WAIT_S)) if where == "host" else None
            if put is not None:
                watch.until_wanted("a")
            batch.dispatched()
        watch.until(lambda: queue.statistics.promotions == 3)
        with queue.put(wide(0), key="a", timeout_s=WAIT_S) if put is None else put.result() as batch:
            assert batch.tree["wide"].dtype == np.int32
        assert queue.statistics.taken == 2
        assert (dict(queue.statistics.inline), dict(queue.statistics.drops)) == ({}, {})
