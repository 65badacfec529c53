"""What the queue does for long it does without the bookkeeping lock, and no payload of its own waits in vain."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from forebay.trainer import PromotionError, StagingQueue, TrainerSettings, daemon_feed
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.entry_states import EntryState
from forebay.trainer.host_tree import HostTree, PlacedTree
from forebay.wire import Lend

from .fake_transfer import FakeTransfer, FakeWork, payload
from .feed_desk import FakeReader, RecordedLink, feed_of, lend
from .queue_bench import Bench, bench_of
from .waiting import WAIT_S, Call, Watch

S = EntryState


class LockWatch:
    """Notes what is done while somebody holds the bookkeeping lock."""

    def __init__(self) -> None:
        self.changed: threading.Condition | None = None
        self.free_in: list[str] = []
        self.locked_in: list[str] = []

    def look(self, where: str) -> None:
        if self.changed is None:
            return

        def take_lock() -> bool:
            assert self.changed is not None
            if not self.changed.acquire(timeout=WAIT_S / 4):
                return False
            self.changed.release()
            return True

        (self.free_in if Call(take_lock).result() else self.locked_in).append(where)


class WatchedTransfer(FakeTransfer):
    def __init__(self, lock: LockWatch) -> None:
        super().__init__()
        self._lock_watch = lock

    def take_apart(self, payload: Any) -> HostTree:
        self._lock_watch.look("take_apart")
        return super().take_apart(payload)

    def place(self, tree: HostTree) -> PlacedTree:
        # Asks the caller's own function for the shardings.
        self._lock_watch.look("place")
        return super().place(tree)

    def watch(self, outputs: Any) -> FakeWork | None:
        # Goes through all leaves of whatever the engine returned.
        self._lock_watch.look("watch")
        return super().watch(outputs)


@pytest.mark.parametrize("mode", ["stage", "serialize"])
def test_the_bookkeeping_lock_is_free_while_payloads_are_taken_apart_and_outputs_are_watched(mode: str) -> None:
    lock = LockWatch()
    with bench_of(WatchedTransfer(lock), mode=mode) as bench:
        lock.changed = bench.queue._parts.changed
        bench.stage("a")
        with bench.queue.take() as batch:
            batch.dispatched(FakeWork(is_done=True))
        with bench.queue.put(payload("x")) as batch:
            batch.dispatched(FakeWork(is_done=True))
        bench.queue.runs(FakeWork(is_done=True))
    assert lock.locked_in == []
    assert [lock.free_in.count(where) for where in ("take_apart", "place", "watch")] == [2, 2, 3]


@pytest.mark.parametrize("how", ["promoted", "compared"])
def test_the_bookkeeping_lock_is_free_while_a_slot_is_read(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, link = LockWatch(), RecordedLink()

    class WatchedReader(FakeReader):
        def read(self, lend: Lend) -> tuple[str, HostTree]:
            lock.look("read")
            return super().read(lend)

    monkeypatch.setattr(daemon_feed, "DaemonLink", link.made)
    monkeypatch.setattr(daemon_feed, "SlotReader", WatchedReader)
    # So that it is read on demand, as where it could not be read ahead.
    monkeypatch.setattr("forebay.trainer.origins.LentSlot.read_ahead", lambda _: None)
    transfer, feed = WatchedTransfer(lock), DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
    with StagingQueue(transfer, settings=TrainerSettings(stage_batch="stage"), feed=feed) as queue:
        lock.changed = queue._parts.changed
        if how == "compared":
            queue.stage(payload("before"), key="before")
            queue.stage(payload("x"), key="x")
            Watch(queue).settle()
            lock.free_in.clear()
        feed_of(queue).lent(lend("a"))
        with queue.put(payload("a"), key="a") if how == "compared" else queue.take("a"):
            pass
    assert lock.locked_in == []
    assert "read" in lock.free_in


def test_a_slot_is_read_ahead_without_the_bookkeeping_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock, link = LockWatch(), RecordedLink()

    class WatchedReader(FakeReader):
        def read(self, lend: Lend) -> tuple[str, HostTree]:
            lock.look("read")
            return super().read(lend)

    monkeypatch.setattr(daemon_feed, "DaemonLink", link.made)
    monkeypatch.setattr(daemon_feed, "SlotReader", WatchedReader)
    feed = DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
    with StagingQueue(FakeTransfer(), settings=TrainerSettings(stage_batch="stage"), feed=feed) as queue:
        lock.changed = queue._parts.changed
        feed_of(queue).lent(lend("a"))
        assert (lock.free_in, lock.locked_in) == (["read"], [])


@pytest.mark.parametrize("by", ["replaced", "reset", "another payload", "prepared"])
def test_the_bookkeeping_lock_is_free_while_the_arrays_of_a_dropped_entry_are_freed(
    by: str, bench: Bench, warnings_given: Callable[[], list[str]]
) -> None:
    del warnings_given
    lock = LockWatch()
    lock.changed = bench.queue._parts.changed
    bench.stage_on_device("a")
    bench.watch.settle()
    entry = bench.queue._parts.books.find("a")
    assert entry is not None
    assert entry.on_device is not None
    weakref.finalize(entry.on_device.arrays[0], lock.look, "free")
    del entry
    bench.transfer.hold()
    if by == "replaced":
        bench.stage("a")
    elif by == "reset":
        bench.queue.reset()
    elif by == "prepared":
        bench.queue.bypass({"x": 1}, key="a").close()
    else:
        bench.transfer.let_go(all_after=True)
        bench.queue.put(payload("a", more=1), key="a").close()
    assert (lock.free_in, lock.locked_in) == (["free"], [])


def test_what_is_on_the_device_already_does_not_wait_for_the_transfer_under_way(bench: Bench) -> None:
    bench.hold_a_promotion("a")
    bypass = Call(lambda: bench.queue.bypass({"x": 1}))
    with bypass.result() as batch:
        assert batch.tree == {"x": 1}
        assert bench.transfer.log == ["issue a"]


def test_the_next_entry_is_promoted_when_a_payload_could_not_be_transferred(
    bench: Bench, warnings_given: Callable[[], list[str]]
) -> None:
    del warnings_given
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    assert bench.transfer.begun.acquire(timeout=WAIT_S)
    bench.transfer.hold()
    put = Call(lambda: bench.queue.put(payload("a", more=1), key="a"))
    bench.transfer.wait_until_begun()
    bench.watch.settle()  # the promoter has seen the room, left it to the step, and sleeps
    bench.transfer.fail_with["a"] = RuntimeError("no memory")
    bench.transfer.let_go(all_after=True)
    assert isinstance(put.error(), PromotionError)
    bench.watch.until_state("b", S.ON_DEVICE)


class SlowToLetGo:
    """The bookkeeping lock; whenever a step lets it go, the promoter has all the time to look for work."""

    def __init__(self, changed: threading.Condition, watch: Watch) -> None:
        self._changed, self._watch, self._is_looking = changed, watch, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._changed, name)

    def __enter__(self) -> bool:
        return self._changed.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._changed.__exit__(*error)
        if not self._is_looking:
            self._is_looking = True
            self._watch.settle()
            self._is_looking = False


def test_a_drop_and_the_steps_claim_to_the_link_are_one_moment(
    bench: Bench, warnings_given: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del warnings_given
    bench.stage("a", "b")
    bench.watch.settle()
    parts = bench.queue._parts
    with monkeypatch.context() as patch:
        patch.setattr(parts, "changed", SlowToLetGo(parts.changed, bench.watch))
        batch = bench.queue.put(payload("a", more=1), key="a")
        batch.close()
    bench.watch.until_state("b", S.ON_DEVICE)
    assert bench.transfer.log == ["issue a", "complete a", "issue a", "complete a", "issue b", "complete b"]
