"""What an engine returns, and a user's logging that raises, end no queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forebay.trainer import Batch
from forebay.trainer.daemon_link import DaemonLink
from forebay.trainer.entry_states import EntryState
from forebay.trainer.once import OneWarning
from forebay.wire import (
    BrokenError,
    ForebayError,
    TreeError,
)

from . import device_arrays
from .engines import Output, staged, wait_for_on_device
from .fake_transfer import FakeTransfer, FakeWork, payload
from .feed_desk import Desk
from .queue_bench import Bench, bench_of, name_of_batch
from .waiting import WAIT_S

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
    warning = OneWarning()
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
    batch = Batch("a", {}, host_bytes=0, promote_s=0.0, is_staged=True, step=step)
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
    bench.watch.settle()
    bench.transfer.fail_with["a"] = error  # again, for the one who asks
    with pytest.raises(ForebayError, match=str(error)):
        bench.queue.take("a", timeout_s=WAIT_S)
    bench.queue.reset()
    bench.stage("b")
    assert name_of_batch(bench.queue.take("b", timeout_s=WAIT_S)) == "b"


@pytest.mark.usefixtures("raising_logging")
def test_a_payload_that_is_not_the_same_is_used_when_the_users_logging_raises(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.trainer.steps.mismatch_warning", OneWarning())
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
