"""What a user's code, a peer or a full machine does wrong costs what it must, and the queue serves on."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from forebay.trainer import Batch, JaxTransfer, NotStagedError, StagingQueue
from forebay.trainer.conversation import Report
from forebay.trainer.daemon_link import DaemonLink
from forebay.trainer.entry_states import EntryState
from forebay.trainer.host_tree import HostTree
from forebay.trainer.once import OneWarning
from forebay.wire import (
    BrokenError,
    Finished,
    ForebayError,
    HostError,
    Lend,
    MicroBatchGoneError,
    TreeError,
    UsageError,
    WaitTimeoutError,
)

from . import device_arrays
from .engines import Output, staged, wait_for_on_device
from .fake_transfer import FakeTransfer, FakeWork, payload
from .feed_desk import Desk, FakeReader, RecordedLink, feed_of, finished, gone, lend
from .queue_bench import Bench, bench_of, name_in, name_of_batch
from .waiting import WAIT_S, Call, Watch

S = EntryState


# --- what an engine returns ---


class Unreferable:
    """Looks like a large device array, and cannot be referred to weakly."""

    __slots__ = ()
    nbytes = 1 << 30

    def is_ready(self) -> bool:
        return True

    def block_until_ready(self) -> Unreferable:
        return self


class Unready(Output):
    """Cannot tell whether it is ready."""

    def is_ready(self) -> bool:
        raise ValueError("no longer an array")


def no_size() -> Output:
    output = Output(0)
    output.nbytes = None  # type: ignore[assignment]
    return output


class OddEngine:
    """Returns what nobody expects."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.fwd_bwd: Callable[..., Any] = lambda _: make()
        self.update: Callable[..., Any] = make


ODD: dict[str, Callable[[], Any]] = {
    "no sortable pytree": lambda: {1: Output(4), "a": Output(4)},
    "no weak references": Unreferable,
    "no size": no_size,
    "no size among others": lambda: [no_size(), Output(4)],
}


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Lets the warning of a process be given anew; returns how to see which were."""
    warning = OneWarning("STAGE_UNWATCHED %s")
    monkeypatch.setattr("forebay.trainer.jax_transfer.unwatchable_warning", warning)
    return lambda: [text for text in caplog.messages if text.startswith("STAGE_UNWATCHED")]


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("what", ODD)
def test_outputs_that_cannot_be_watched_are_returned_warned_of_once_and_leave_the_room_free(
    what: str, unwatched: Callable[[], list[str]]
) -> None:
    with staged(OddEngine(ODD[what])) as wrapped:
        for number in range(3):
            wrapped.stage_batch(device_arrays.payload(number), key=str(number))
        for number in range(3):
            assert wrapped.fwd_bwd(stage_key=str(number)) is not None
            wrapped.update()
        assert wrapped.queue.statistics.taken == 3
        assert wrapped.queue._parts.books.room.used == 0
    assert len(unwatched()) == 1


@pytest.mark.usefixtures("nothing_is_left")
def test_outputs_that_cannot_tell_whether_they_are_ready_are_waited_for(
    unwatched: Callable[[], list[str]],
) -> None:
    outputs: list[Unready] = []

    def make() -> Unready:
        outputs.append(Unready(4))
        return outputs[-1]

    with staged(OddEngine(make)) as wrapped:
        for number in range(4):
            wrapped.stage_batch(device_arrays.payload(number), key=str(number))
        for number in range(3):
            assert wrapped.fwd_bwd(stage_key=str(number)) is outputs[number]
        wait_for_on_device(wrapped.queue, 1)
        assert wrapped.queue._parts.books.room.used == 1
        assert outputs[0].waits > 0
    assert unwatched() == []


class RecordedStep:
    """Where a batch came from; it hears nothing of a dispatch."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def dispatched(self, outputs: Any) -> None:
        raise ZeroDivisionError(outputs)

    def ended(self, reason: str) -> None:
        self.said.append(f"ended: {reason}")


@pytest.mark.parametrize("reason", ["", "the trainer raised"])
def test_a_batch_tells_its_end_also_if_its_dispatch_cannot_be_told(reason: str) -> None:
    step = RecordedStep()
    batch = Batch("a", {}, host_bytes=0, promote_s=0.0, step=step)
    with pytest.raises(ZeroDivisionError):
        batch.close(reason)
    assert step.said == [f"ended: {reason}"]
    batch.close()
    assert step.said == [f"ended: {reason}"]


class Unwatching(FakeTransfer):
    """Cannot watch what a step puts out, but that it puts out nothing."""

    def watch(self, outputs: Any) -> FakeWork | None:
        raise ZeroDivisionError(outputs)


def test_a_step_whose_outputs_cannot_be_watched_leaves_its_room_to_the_next() -> None:
    with bench_of(Unwatching()) as bench:
        bench.stage("a", "b")
        with pytest.raises(ZeroDivisionError), bench.queue.take() as batch:
            batch.dispatched("outputs")
        assert name_of_batch(bench.queue.take(timeout_s=WAIT_S)) == "b"
        assert bench.counts() == (0, 0, 0)


# --- a user's logging ---


class RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ZeroDivisionError(record.getMessage())


class RaisingFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise ZeroDivisionError(record.getMessage())


@pytest.fixture(params=["handler", "filter"])
def raising_logging(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """A user's addition to the trainer's log that raises at each record."""
    log = logging.getLogger("forebay.trainer")
    handler, raising = RaisingHandler(), RaisingFilter()
    if request.param == "handler":
        log.addHandler(handler)
    else:
        log.addFilter(raising)
    before = log.level
    try:
        yield log
    finally:
        log.setLevel(before)
        log.removeHandler(handler)
        log.removeFilter(raising)


LEVELS = pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG], ids=["info", "debug"])


@LEVELS
def test_the_promoter_serves_on_when_the_users_logging_raises(
    bench: Bench, raising_logging: logging.Logger, level: int
) -> None:
    raising_logging.setLevel(level)
    bench.stage("a", "b")
    # Of which each is told: a transfer, a way back, and one more transfer.
    assert [name_of_batch(bench.queue.take(key, timeout_s=WAIT_S)) for key in ("b", "a")] == ["b", "a"]
    bench.stage("c", "d")
    assert [name_of_batch(bench.queue.take(timeout_s=WAIT_S)) for _ in range(2)] == ["c", "d"]
    assert bench.queue._parts.promoter.failure is None


@LEVELS
@pytest.mark.parametrize("error", [RuntimeError("no memory"), TreeError("bad leaf")])
def test_the_promoter_serves_on_when_the_users_logging_raises_at_a_failure(
    bench: Bench, raising_logging: logging.Logger, level: int, error: Exception
) -> None:
    raising_logging.setLevel(level)
    bench.transfer.fail_with["a"] = error
    bench.stage("a")
    with pytest.raises(ForebayError, match=str(error)):
        bench.queue.take("a", timeout_s=WAIT_S)
    bench.queue.reset()
    bench.stage("b")
    assert name_of_batch(bench.queue.take("b", timeout_s=WAIT_S)) == "b"


@pytest.mark.usefixtures("raising_logging")
def test_a_payload_that_is_not_the_same_is_used_when_the_users_logging_raises(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.trainer.steps.mismatch_warning", OneWarning("STAGE_MISMATCH key=%s"))
    bench.stage("a", "b")
    with bench.queue.put(payload("a", more=1), key="a") as batch:
        assert batch.tree["more"] == 1
    assert bench.inline() == {"mismatch": 1}
    assert name_of_batch(bench.queue.take(timeout_s=WAIT_S)) == "b"


@pytest.mark.usefixtures("raising_logging")
def test_a_link_that_fails_is_told_of_when_the_users_logging_raises(
    monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> None:
    def fail(_: DaemonLink) -> None:
        raise BrokenError("the daemon speaks in riddles")

    told: list[ForebayError] = []
    monkeypatch.setattr(DaemonLink, "_talk", fail)
    link = DaemonLink("ipc:///dev/shm/forebay-test-nobody.sock", "train", desk.feed, told.append)
    with pytest.raises(BrokenError, match="riddles"):
        link.attach(WAIT_S)
    link.close()
    assert [str(error) for error in told] == ["the daemon speaks in riddles"]


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

    with staged(OddEngine(dict), transfer=JaxTransfer(cast_64bit=True)) as wrapped:
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


# --- requests that cannot be ---

BAD_KEYS = ["", "\ud800", "a\udfff", "k" * 1025, "é" * 513, 7, b"a", True, ("a",)]
BAD_TIMEOUTS = [None, "5", -1, -0.5, float("nan"), float("-inf"), [1]]


def nothing_moved(bench: Bench) -> None:
    assert bench.keys() == ("a",)
    assert bench.counts() == (0, 1, 0)
    assert (bench.inline(), bench.drops()) == ({}, {})
    numbers = bench.queue.statistics
    assert (numbers.staged, numbers.taken, numbers.prepared, numbers.inline_steps) == (1, 0, 0, 0)
    books = bench.queue._parts.books
    assert (books._takers, dict(books._wanted)) == (0, {})
    assert bench.transfer.log == ["issue a", "complete a"]


@pytest.mark.parametrize("call", ["stage", "take", "put", "bypass"])
@pytest.mark.parametrize("key", BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_what_is_no_key_is_refused_and_nothing_moves(bench: Bench, call: str, key: Any) -> None:
    bench.stage_on_device("a")
    calls: dict[str, Callable[[], object]] = {
        "stage": lambda: bench.queue.stage(payload("x"), key=key),
        "take": lambda: bench.queue.take(key),
        "put": lambda: bench.queue.put(payload("x"), key=key),
        "bypass": lambda: bench.queue.bypass({}, key=key),
    }
    with pytest.raises(
        UsageError, match=r"^the key of a micro-batch; got .*limit Unicode text of 1 to 1024 bytes"
    ):
        calls[call]()
    nothing_moved(bench)


def test_nothing_is_staged_without_a_key(bench: Bench) -> None:
    bench.stage_on_device("a")
    with pytest.raises(UsageError, match="was staged without a key"):
        bench.queue.stage(payload("x"), key=None)  # type: ignore[arg-type]
    nothing_moved(bench)


@pytest.mark.parametrize("key", ["k" * 1024, "é" * 512, "\n"], ids=range(3))
def test_what_is_just_a_key_is_one(bench: Bench, key: str) -> None:
    bench.queue.stage(payload("x"), key=key)
    assert name_of_batch(bench.queue.take(key, timeout_s=WAIT_S)) == "x"


@pytest.mark.parametrize("call", ["stage", "take", "put"])
@pytest.mark.parametrize("timeout_s", BAD_TIMEOUTS, ids=map(repr, BAD_TIMEOUTS))
def test_what_is_no_timeout_is_refused_and_nothing_moves(bench: Bench, call: str, timeout_s: Any) -> None:
    bench.stage_on_device("a")
    calls: dict[str, Callable[[], object]] = {
        "stage": lambda: bench.queue.stage(payload("x"), key="x", timeout_s=timeout_s),
        "take": lambda: bench.queue.take("a", timeout_s=timeout_s),
        "put": lambda: bench.queue.put(payload("a"), key="a", timeout_s=timeout_s),
    }
    with pytest.raises(UsageError, match=r"^a timeout.*limit 0 s or more"):
        calls[call]()
    nothing_moved(bench)


def deep(levels: int) -> Any:
    tree: Any = np.zeros(1, np.int8)
    for _ in range(levels):
        tree = [tree]
    return tree


def endless() -> Any:
    tree: list[Any] = []
    tree.append(tree)
    return tree


@pytest.mark.parametrize("call", ["stage", "put", "put with a key"])
@pytest.mark.parametrize(
    "tree", [deep(5000), endless(), {"x": endless()}], ids=["deep", "endless", "endless in x"]
)
def test_a_payload_without_a_bottom_is_refused_and_nothing_moves(bench: Bench, call: str, tree: Any) -> None:
    bench.stage_on_device("a")
    calls: dict[str, Callable[[], object]] = {
        "stage": lambda: bench.queue.stage(tree, key="x"),
        "put": lambda: bench.queue.put(tree),
        "put with a key": lambda: bench.queue.put(tree, key="a"),
    }
    with pytest.raises(TreeError, match="nested too deeply, or holds itself"):
        calls[call]()
    nothing_moved(bench)


# --- a daemon that is away, was replaced, or says that a key is gone ---


def test_what_is_raised_after_the_link_failed_does_not_grow(link: RecordedLink, queue: StagingQueue) -> None:
    link.broken(BrokenError("the daemon speaks in riddles"))
    frames: set[int] = set()
    for _ in range(50):
        with pytest.raises(BrokenError, match="riddles") as caught:
            queue.take("a")
        frames.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(frames) == 1


@pytest.fixture
def said_later(link: RecordedLink, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Report]]:
    """Has reports made only when a test says so, as a link does that is busy; returns how."""
    makers: list[Callable[[], Report | None]] = []
    monkeypatch.setattr(link, "report", makers.append)
    return lambda: [report for make in makers if (report := make()) is not None]


def test_a_release_that_is_said_when_its_pool_was_replaced_is_left_out(
    link: RecordedLink, desk: Desk, said_later: Callable[[], list[Report]]
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    desk.promote("a")
    link.attached("another", same_pool=False)
    assert said_later() == []


def test_an_end_that_is_said_when_its_pool_was_replaced_names_no_slot(
    link: RecordedLink, desk: Desk, said_later: Callable[[], list[Report]]
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.rejected(entry, TreeError("no such class"), "no such class")
    link.attached("another", same_pool=False)
    assert said_later() == [finished("a", -1, 7, reason="no such class")]


def test_a_release_and_an_end_that_are_said_late_in_the_same_pool_name_their_slot(
    link: RecordedLink, desk: Desk, said_later: Callable[[], list[Report]]
) -> None:
    desk.feed.lent(lend("a", 3, 7))
    entry = desk.begin("a")
    entry.origin.read()
    desk.books.rejected(entry, TreeError("no such class"), "no such class")
    link.attached("pool", same_pool=True)
    assert said_later() == [finished("a", 3, 7, reason="no such class")]


def test_all_who_wait_for_a_key_hear_that_it_is_gone(link: RecordedLink, queue: StagingQueue) -> None:
    watch = Watch(queue)
    with ThreadPoolExecutor(2) as pool:
        # Longer than the test waits: a wait that only ends by its timeout has heard nothing.
        takes = [pool.submit(queue.take, "a", timeout_s=2 * WAIT_S) for _ in range(2)]
        watch.until_wanted("a", by=2)
        feed_of(queue).gone(gone("a"))
        for take in takes:
            with pytest.raises(MicroBatchGoneError, match="'a' is consumed"):
                take.result(WAIT_S)
    assert link.last_demand() == (1, (), True)


# --- many ---


@pytest.mark.slow
def test_many_entries_without_a_cap_are_all_promoted_and_taken_in_order() -> None:
    count = 20_000
    names = [str(number) for number in range(count)]
    with bench_of(cap=0) as bench:
        bench.stage(*names)
        bench.watch.until(lambda: bench.queue._parts.books.totals.promotions == count)
        assert bench.keys() == tuple(names)
        assert bench.transfer.log[::2] == [f"issue {name}" for name in names]
        assert [batch_key(bench.queue) for _ in names] == names
        assert bench.counts() == (0, 0, 0)


def batch_key(queue: StagingQueue) -> str:
    with queue.take(timeout_s=WAIT_S) as batch:
        return batch.key


def test_who_asks_for_what_is_not_staged_is_shown_the_first_of_many_keys(bench: Bench) -> None:
    bench.stage(*(f"k{number}" for number in range(1000)))
    with pytest.raises(NotStagedError) as caught:
        bench.queue.take("x")
    error = caught.value
    assert error.got == f"staged keys {[f'k{number}' for number in range(16)]} and 984 more"
    assert "['k0', 'k1', 'k2'" in str(error)
    assert "and 984 more" in str(error)
    assert str(error).startswith("no micro-batch with the key 'x' is staged; got ")
