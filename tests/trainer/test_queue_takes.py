"""A step gets what was staged, in order or by its key, whichever threads ask."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from forebay.trainer import Batch, Queued, StagingQueue
from forebay.trainer.entry_states import EntryState
from forebay.wire import ClosedError, WaitTimeoutError

from .fake_transfer import payload
from .queue_bench import Bench, batch_key, bench_of, name_in, name_of_batch
from .waiting import Call

S = EntryState


# First that who waits is told at all: else each test would pass after a very long time.


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


# Waits that are given up.


WAYS: dict[str, Callable[[StagingQueue, Callable[[], bool]], Batch]] = {
    "the next": lambda queue, given_up: queue.take(given_up=given_up),
    "a key": lambda queue, given_up: queue.take("a", given_up=given_up),
    "a payload with a key": lambda queue, given_up: queue.put(payload("a"), key="a", given_up=given_up),
}


@pytest.mark.parametrize("look", ["at once", "when the entry has arrived"])
@pytest.mark.parametrize("way", WAYS)
def test_a_wait_that_was_given_up_ends_and_leaves_the_entry_that_was_on_its_way(
    bench: Bench, way: str, look: str
) -> None:
    given_up = threading.Event()
    bench.hold_a_promotion("a")
    call = Call(lambda: WAYS[way](bench.queue, given_up.is_set))
    bench.watch.until_wanted(None if way == "the next" else "a")
    given_up.set()
    if look == "at once":
        bench.queue.look_again()
        assert isinstance(call.error(), WaitTimeoutError)
    bench.transfer.let_go(all_after=True)
    error = call.error()
    assert isinstance(error, WaitTimeoutError)
    assert "given up by its caller" in str(error)
    assert bench.keys() == ("a",)
    assert batch_key(bench.queue.take()) == "a"


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
