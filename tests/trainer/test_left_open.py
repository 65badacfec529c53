"""A queue that nobody closes ends what it began, once, and leaves a forked child alone."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.trainer import StagingQueue, TrainerSettings, staging_queue
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.entry_states import EntryState
from forebay.trainer.left_open import LeftOpen
from forebay.wire import WaitTimeoutError

from .fake_transfer import FakeTransfer, payload
from .feed_desk import RecordedLink, feed_of, lend, transfer_of
from .waiting import WAIT_S, Watch

SETTINGS = TrainerSettings(stage_batch="stage", max_device_batches=1)


def join_threads(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(WAIT_S)
            assert not thread.is_alive()


# --- nobody closes it ---


def test_a_queue_that_is_dropped_without_being_closed_ends_its_feed_once(link: RecordedLink) -> None:
    queue = StagingQueue(
        FakeTransfer(), settings=SETTINGS, feed=DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
    )
    queue.stage(payload("a"), key="a")
    with pytest.warns(ResourceWarning, match="was never closed"):
        del queue
    gc.collect()
    join_threads("forebay-left-open")
    assert link.closed == 1
    assert "forebay-promoter" not in {thread.name for thread in threading.enumerate()}


def test_a_queue_that_was_closed_is_ended_no_second_time_when_it_is_dropped(
    link: RecordedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[LeftOpen] = []
    monkeypatch.setattr(LeftOpen, "_end_in_background", ended.append)
    queue = StagingQueue(
        FakeTransfer(), settings=SETTINGS, feed=DaemonFeed("ipc:///nowhere", "train", timeout_s=1)
    )
    queue.stage(payload("a"), key="a")
    queue.close()
    gone = weakref.ref(queue)
    del queue
    gc.collect()
    assert gone() is None
    assert ended == []
    assert link.closed == 1


def test_a_process_that_ends_with_an_open_queue_ends_as_if_it_were_closed() -> None:
    assert run("queue.stage({'leaf': np.zeros(4, np.float32)}, key='a')\nsys.exit(3)") == (3, "")


# --- a forked child ---

PREFACE = f"""
import faulthandler, os, signal, sys, threading
import numpy as np
from forebay.trainer import JaxTransfer, StagingQueue, TrainerSettings

class NoDevice(JaxTransfer):
    def issue(self, placed):
        raise RuntimeError("JAX's own threads would be no help to a forked child")

queue = StagingQueue(NoDevice(), settings=TrainerSettings(stage_batch="stage"))
WAIT_S = {WAIT_S:.0f}
"""
FORK = """
queue.stage({"leaf": np.zeros(4, np.float32)}, key="a")

def hold(held, let_go):
    with queue._parts.changed:
        held.set()
        assert let_go.wait(2 * WAIT_S)

def child_of_a_moment_in_which_the_lock_is_held():
    held, let_go = threading.Event(), threading.Event()
    holder = threading.Thread(target=hold, args=(held, let_go))
    holder.start()
    assert held.wait(WAIT_S)
    child = os.fork()
    if not child:
        signal.alarm(WAIT_S)
        faulthandler.dump_traceback_later(WAIT_S / 2, file=2)  # says where a child hangs
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    let_go.set()
    holder.join()
    return os.waitstatus_to_exitcode(status)

codes = [7]
while codes[-1] == 7 and len(codes) <= 5:
    codes.append(child_of_a_moment_in_which_the_lock_is_held())
queue.close()
print(codes[1:], end="")
"""


def run(script: str) -> tuple[int, str]:
    """Runs a script; returns its exit code and what it printed, and shows its errors where a test then fails.

    Its `sys.stderr` has no buffer, and so no lock, which the interpreter leaves to a child as it was: forked while
    another thread writes a line, as the promoter of a failure, it hangs when `logging` flushes that at its exit.
    """
    command = [sys.executable, "-u", "-W", "ignore", "-c", PREFACE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * WAIT_S, check=False)
    sys.stderr.write(done.stderr)
    return done.returncode, done.stdout


def test_a_forked_child_ends_by_itself_whatever_the_queue_did_at_the_fork() -> None:
    assert run(FORK) == (0, "[7, 7, 7, 7, 7]")


# --- closed more than once ---


def keys_of(queue: StagingQueue) -> tuple[str, ...]:
    return queue.keys  # mypy would take the property to be the same at each look


def hold_a_lent_entry(queue: StagingQueue) -> FakeTransfer:
    transfer = transfer_of(queue)
    transfer.hold()
    for slot, key in enumerate("ab"):
        feed_of(queue).lent(lend(key, slot))
    transfer.wait_until_begun()
    return transfer


def test_a_close_that_times_out_ends_nothing_and_the_next_one_ends_it_all(
    link: RecordedLink, queue: StagingQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_queue, "_CLOSE_S", 0)
    transfer = hold_a_lent_entry(queue)
    with pytest.raises(WaitTimeoutError, match=r"waited 0 s for the transfer under way to end; close it again"):
        queue.close()
    assert link.closed == 0
    assert keys_of(queue) == ("a", "b")
    monkeypatch.undo()
    transfer.let_go(all_after=True)
    for _ in range(2):
        queue.close()
        assert link.closed == 1
        assert keys_of(queue) == ()
    assert (queue.statistics.queued, queue.statistics.on_device) == (0, 0)


def test_closing_frees_what_a_daemon_lent_that_waits_on_the_device(queue: StagingQueue) -> None:
    watch = Watch(queue)
    feed_of(queue).lent(lend("a"))
    watch.until_state("a", EntryState.ON_DEVICE)
    watch.settle()
    assert transfer_of(queue).live == ["a"]
    queue.close()
    assert transfer_of(queue).live == []


def test_of_two_threads_that_close_a_queue_one_ends_its_feed(link: RecordedLink, queue: StagingQueue) -> None:
    transfer = hold_a_lent_entry(queue)
    with ThreadPoolExecutor(2) as pool:
        closes = [pool.submit(queue.close) for _ in range(2)]
        with queue._parts.changed:
            assert queue._parts.changed.wait_for(lambda: queue._parts.closed, WAIT_S)
        assert not any(close.done() for close in closes)
        assert link.closed == 0
        transfer.let_go(all_after=True)
        for close in closes:
            close.result(WAIT_S)
    assert link.closed == 1
    assert queue.keys == ()


# --- keys that end here ---


def test_the_next_is_promoted_by_itself_when_what_waits_on_the_device_was_trained_by_other_bytes(
    queue: StagingQueue,
) -> None:
    watch = Watch(queue)
    batch = queue.put(payload("a"), key="a")
    batch.dispatched()
    for slot, key in enumerate("ab"):
        feed_of(queue).lent(lend(key, slot))
    watch.until_state("a", EntryState.ON_DEVICE)
    watch.settle()
    batch.close()
    assert queue.keys == ("b",)
    watch.until_state("b", EntryState.ON_DEVICE)
