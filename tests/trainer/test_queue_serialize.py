"""Serialized, transfers and the device's work take turns, and staging returns when its transfer is complete."""

from __future__ import annotations

import threading

import pytest

from forebay.trainer import Queued
from forebay.trainer.entry import Entry
from forebay.trainer.entry_states import EntryState

from .fake_transfer import FakeWork, payload
from .queue_bench import Bench, bench_of
from .waiting import WAIT_S, Call

S = EntryState


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
        with bench.queue._parts.changed:
            bench.queue._parts.changed.notify_all()
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
        assert bench.transfer.log[2:] == (["issue x", "complete x"] if inline else ["issue b", "complete b"])


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
