"""What a queue logs, counts and shows is what happened."""

from __future__ import annotations

import dataclasses
import json
import logging
import re

import pytest

from forebay.trainer import StageDemote, StagePromote
from forebay.trainer.entry import Entry, InProcess
from forebay.trainer.entry_states import EntryState

from .fake_transfer import FakeWork, payload
from .queue_bench import Bench, bench_of, events_of
from .waiting import WAIT_S

S = EntryState


def test_each_promotion_is_logged_and_the_record_carries_the_same_numbers(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    bench.stage("a", "b")
    with bench.queue.take():
        pass
    bench.watch.settle()
    records = [record for record in caplog.records if record.getMessage().startswith("STAGE_PROMOTE")]
    for record, key in zip(records, "ab", strict=True):
        line = record.getMessage()
        seconds = r"\d+\.\d{6}"
        assert re.fullmatch(
            rf"STAGE_PROMOTE key={key} host_bytes=16 wait_prev_s={seconds} issue_s={seconds}"
            rf" queued=\d on_device=1",
            line,
        ), line
        assert (record.levelno, record.name) == (logging.INFO, "forebay.trainer")
        event = record.__dict__["event"]
        assert isinstance(event, StagePromote)
        assert line == (
            f"STAGE_PROMOTE key={event.key} host_bytes={event.host_bytes} wait_prev_s={event.wait_prev_s:.6f}"
            f" issue_s={event.issue_s:.6f} queued={event.queued} on_device={event.on_device}"
        )
        assert event.transfer_s >= event.issue_s >= 0
    last = records[-1].__dict__["event"]
    assert (last.queued, last.on_device) == (0, 1)


def test_the_logged_wait_is_the_wait_for_what_came_before(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    bench.stage("a", "b", "c")
    work = FakeWork()
    for outputs in (work, None):
        with bench.queue.take() as batch:
            batch.dispatched(outputs)
    bench.watch.settle()
    numbers = bench.queue.statistics
    events = [event for event in events_of(caplog) if isinstance(event, StagePromote)]
    assert numbers.promotions == len(events) == 3
    assert numbers.promoted_bytes == sum(event.host_bytes for event in events) == 48
    assert numbers.wait_prev_s == pytest.approx(sum(event.wait_prev_s for event in events))
    assert numbers.issue_s == pytest.approx(sum(event.issue_s for event in events))
    assert numbers.transfer_s == pytest.approx(sum(event.transfer_s for event in events))


def test_a_wait_for_the_device_is_logged_with_the_promotion_that_waited_and_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    monkeypatch.setattr("forebay.trainer.promoter.time", TickingClock())
    bench.stage("a", "b", "c", "d")
    first, second = FakeWork(), FakeWork()
    for work in (first, second):
        with bench.queue.take() as batch:
            batch.dispatched(work)
    assert first.waited_for.wait(WAIT_S)
    first.finish()
    with bench.queue.take():
        pass
    bench.watch.settle()
    events = [event for event in events_of(caplog) if isinstance(event, StagePromote)]
    # One tick for the transfer lock of each; and one for the device.
    assert [event.wait_prev_s for event in events] == [1, 1, 2, 1]
    assert [(event.issue_s, event.transfer_s) for event in events] == [(1, 2)] * 4


class TickingClock:
    """A clock that is read once a second."""

    def __init__(self) -> None:
        self._seconds = 0

    def monotonic(self) -> float:
        self._seconds += 1
        return float(self._seconds)


def test_an_entry_that_is_brought_back_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.stage("a", "b")
    bench.watch.until_state("a", S.ON_DEVICE)
    with bench.queue.take("b"):
        pass
    (event,) = [event for event in events_of(caplog) if isinstance(event, StageDemote)]
    assert (event.key, event.wanted, event.host_bytes) == ("a", "b", 16)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [f"STAGE_DEMOTE key=a wanted=b host_bytes=16 transfer_s={event.transfer_s:.6f}"]


def test_a_key_cannot_break_a_log_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forebay.trainer")
    bench.queue.stage(payload("a"), key="a\nSTAGE_PROMOTE\x1b[2J")
    bench.watch.settle()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(r"STAGE_PROMOTE key=a\nSTAGE_PROMOTE\x1b[2J host_bytes=16 ")


def test_statistics_cannot_be_changed_and_do_not_change(bench: Bench) -> None:
    before = bench.queue.statistics
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.queued = 1  # type: ignore[misc]
    for mapping in (before.inline, before.drops):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]
    with bench.queue.put(payload("x")):
        pass
    assert dict(before.inline) == {}
    assert before.inline_steps == 0


def test_statistics_show_what_is_there_and_what_happened(bench: Bench) -> None:
    assert repr(bench.queue.statistics) == (
        "QueueStats(queued=0, on_device=0, in_step=0, staged=0, taken=0, promotions=0)"
    )
    bench.transfer.fail_with["c"] = RuntimeError("no memory")
    bench.stage("a", "b", "a")
    bench.watch.settle()
    with bench.queue.take("a"), bench.queue.put(payload("x")):
        assert repr(bench.queue.statistics) == (
            "QueueStats(queued=1, on_device=0, in_step=1, staged=3, taken=1,"
            f" promotions={bench.queue.statistics.promotions}, inline_steps=1, inline={{'keyless': 1}},"
            " drops={'replaced': 1})"
        )
    with bench.queue.take("b"):
        pass
    bench.stage("c")
    bench.watch.settle()
    assert repr(bench.queue.statistics).endswith("failures=1, inline={'keyless': 1}, drops={'replaced': 1})")


def test_a_queue_shows_its_entries_the_room_and_what_its_thread_does(bench: Bench) -> None:
    room = "of 1 on the device, 0 in a step, 0 running, promoter idle)"
    assert repr(bench.queue) == f"StagingQueue(stage, [], 0 {room}"
    bench.stage("a", "b")
    bench.watch.settle()
    assert repr(bench.queue) == f"StagingQueue(stage, ['a' on_device, 'b' host], 1 {room}"


def test_a_queue_shows_for_how_long_its_thread_does_what() -> None:
    with bench_of(cap=0, mode="stage") as bench:
        bench.hold_a_promotion("a")
        assert re.fullmatch(
            r"StagingQueue\(stage, \['a' promoting\], 1 of inf on the device, 0 in a step, 0 running,"
            r" promoter promoting 'a' for \d+\.\d s\)",
            repr(bench.queue),
        )


def test_a_serializing_queue_shows_that_its_thread_waits_for_the_device() -> None:
    with bench_of(mode="serialize") as bench:
        bench.stage("a", "b")
        work = FakeWork()
        with bench.queue.take() as batch:
            batch.dispatched(work)
        assert work.waited_for.wait(WAIT_S)
        assert re.fullmatch(
            r"StagingQueue\(serialize, \['b' host\], 0 of 1 on the device, 0 in a step, 1 running,"
            r" promoter waiting for the device to finish what was dispatched for \d+\.\d s\)",
            repr(bench.queue),
        )
        work.finish()


def test_entries_and_batches_show_where_they_are(bench: Bench) -> None:
    assert repr(Entry("a", InProcess())) == "Entry('a', host)"
    bench.stage("a")
    with bench.queue.take() as batch:
        assert repr(batch) == "Batch('a', 16 bytes, in use)"
        batch.dispatched()
        assert repr(batch) == "Batch('a', 16 bytes, dispatched)"
    assert repr(batch) == "Batch('a', 16 bytes, finished)"


def test_the_statistics_can_be_written_as_json(bench: Bench) -> None:
    bench.stage("a")
    bench.stage("a")
    numbers = json.loads(json.dumps(bench.queue.statistics.as_dict()))
    assert (numbers["staged"], numbers["drops"], numbers["inline"]) == (2, {"replaced": 1}, {})


def test_a_queue_without_an_engine_shows_no_mode() -> None:
    with bench_of(mode="off") as bench:
        assert repr(bench.queue).startswith("StagingQueue([], 0 of 1 on the device")
