"""What is replaced or reset, in mid-transfer too, leaves the queue and the device."""

from __future__ import annotations

import pytest

from forebay.trainer import NotStagedError, StagingQueue
from forebay.trainer.entry_states import EntryState

from .fake_transfer import FakeTransfer, payload
from .queue_bench import Bench, name_in, name_of_batch
from .waiting import Call

S = EntryState


# The same key again.


def test_staging_a_key_again_replaces_it_in_place(bench: Bench) -> None:
    bench.stage("a", "b", "c")
    bench.watch.settle()
    assert bench.queue.stage(payload("new"), key="b").replaced
    assert bench.keys() == ("a", "b", "c")
    assert [name_of_batch(bench.queue.take()) for _ in range(3)] == ["a", "new", "c"]
    assert bench.drops() == {"replaced": 1}


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
