"""Moments are read in order, each once, also across a daemon's restart; what cannot be told any more is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forebay.cli.events import as_object, moment_words
from forebay.cli.history import Clock, Reading, read_all, read_last, unbroken
from forebay.daemon.history import History
from forebay.wire import MAX_MOMENTS, Event, Events, GetEvents, Moment


class FakeDaemon:
    """Answers from a history as a daemon does, but in short pages."""

    def __init__(
        self,
        count: int,
        limit: int = 10_000,
        epoch: str = "one",
        *,
        before_page: Callable[[FakeDaemon, int], None] = lambda *_: None,
    ) -> None:
        self.epoch, self.limit, self.asked = epoch, limit, 0
        self._before_page = before_page
        self.start(count)

    def start(self, count: int) -> None:
        self.history = History(self.limit)
        self.happen(count)

    def happen(self, count: int) -> None:
        for _ in range(count):
            number = self.history.last + 1
            self.history.note(float(number), Event.READY, {"queue": "train", "key": f"k{number % 2}"})

    async def ask(self, request: GetEvents, *_: Any, **__: Any) -> Events:
        self._before_page(self, self.asked)
        self.asked += 1
        after = self.history.last if request.after < 0 else request.after
        told = self.history.after(after, request.limit, queue=request.queue, key=request.key)
        moments, last = told
        return Events(
            moments=moments,
            last=last,
            oldest=self.history.oldest,
            now_s=float(self.history.last),
            epoch=self.epoch,
        )


def numbers(moments: Sequence[Moment]) -> list[int]:
    return [moment.number for moment in moments]


def test_all_pages_are_read() -> None:
    moments, _ = asyncio.run(read_all(FakeDaemon(2500), Reading()))  # type: ignore[arg-type]
    assert numbers(moments) == list(range(1, 2501))


@pytest.mark.parametrize("count", [0, 1, MAX_MOMENTS - 1, MAX_MOMENTS + 1, 3 * MAX_MOMENTS + 1])
def test_not_one_page_more_is_read_than_it_takes(count: int) -> None:
    told: list[int] = []
    daemon = FakeDaemon(count)
    moments, clock = asyncio.run(read_all(daemon, Reading(), told.append))  # type: ignore[arg-type]
    assert numbers(moments) == list(range(1, count + 1))
    assert clock.now_s == count
    assert daemon.asked == len(told) == max(1, -(-count // MAX_MOMENTS))
    assert told[-1] == count


def test_a_daemon_that_is_busier_than_the_reader_does_not_keep_it_for_ever() -> None:
    daemon = FakeDaemon(MAX_MOMENTS, before_page=lambda daemon, asked: daemon.happen(MAX_MOMENTS if asked else 0))
    moments, clock = asyncio.run(read_all(daemon, Reading()))  # type: ignore[arg-type]
    assert len(moments) <= 2 * MAX_MOMENTS
    assert clock.now_s == moments[-1].at_s


def test_behind_what_was_forgotten_between_two_pages_nothing_is_broken() -> None:
    def go_on(daemon: FakeDaemon, asked: int) -> None:
        if asked == 1:
            daemon.happen(MAX_MOMENTS + 500)

    daemon = FakeDaemon(MAX_MOMENTS + 900, limit=MAX_MOMENTS + 100, before_page=go_on)
    moments, _ = asyncio.run(read_all(daemon, Reading()))  # type: ignore[arg-type]
    assert [moment.words.split()[0] for moment in moments if moment.event == "missed"] == ["500"]
    rest = numbers(unbroken(moments))
    assert rest == list(range(2301, rest[-1] + 1))


def test_of_a_daemon_that_restarts_between_two_pages_the_new_run_is_read_whole() -> None:
    def restart(daemon: FakeDaemon, asked: int) -> None:
        if asked == 1:
            daemon.epoch = "two"
            daemon.start(MAX_MOMENTS + 5)

    daemon = FakeDaemon(MAX_MOMENTS + 900, before_page=restart)
    moments, _ = asyncio.run(read_all(daemon, Reading()))  # type: ignore[arg-type]
    assert [moment.event for moment in moments].count("restarted") == 1
    assert numbers(unbroken(moments)) == list(range(1, MAX_MOMENTS + 6))


def test_the_last_ones_are_the_last_ones() -> None:
    moments, _ = asyncio.run(read_last(FakeDaemon(2500), Reading(), 3))  # type: ignore[arg-type]
    assert numbers(moments) == [2498, 2499, 2500]
    moments, _ = asyncio.run(read_last(FakeDaemon(2500), Reading(key="k0"), 3))  # type: ignore[arg-type]
    assert numbers(moments) == [2496, 2498, 2500]
    moments, _ = asyncio.run(read_last(FakeDaemon(2), Reading(), 3))  # type: ignore[arg-type]
    assert numbers(moments) == [1, 2]
    moments, _ = asyncio.run(read_last(FakeDaemon(2), Reading(), 0))  # type: ignore[arg-type]
    assert moments == []


def test_what_was_forgotten_before_it_was_read_is_counted() -> None:
    daemon, reading = FakeDaemon(5, limit=10), Reading()
    asyncio.run(read_all(daemon, reading))  # type: ignore[arg-type]
    daemon.happen(13)
    moments, _ = asyncio.run(read_all(daemon, reading))  # type: ignore[arg-type]
    assert (moments[0].event, moments[0].words.split()[0]) == ("missed", "3")
    assert numbers(moments[1:]) == list(range(9, 19))


def test_what_was_forgotten_before_anybody_asked_is_not_missed() -> None:
    moments, _ = asyncio.run(read_all(FakeDaemon(30, limit=10), Reading()))  # type: ignore[arg-type]
    assert numbers(moments) == list(range(21, 31))


@pytest.mark.parametrize("count", [0, 3, 50])
def test_another_run_of_the_daemon_is_told_and_read_from_its_start(count: int) -> None:
    reading = Reading()
    asyncio.run(read_all(FakeDaemon(20), reading))  # type: ignore[arg-type]
    moments, _ = asyncio.run(read_all(FakeDaemon(count, epoch="two"), reading))  # type: ignore[arg-type]
    assert moments[0].event == "restarted"
    assert numbers(moments[1:]) == list(range(1, count + 1))
    assert reading.epoch == "two"


def test_a_moments_time_is_this_hosts() -> None:
    clock = Clock(now_s=5000.0, local_s=1_800_000_000.0)
    assert clock.at(4990.0).timestamp() == 1_800_000_000.0 - 10
    assert clock.spell(4999.5).endswith(".500")
    assert clock.agrees(Clock(5010.0, 1_800_000_010.2))
    assert not clock.agrees(Clock(5010.0, 1_800_000_020.0))


def test_a_moment_is_told_by_all_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    about = {"queue": "train", "key": "k\x1b[2J"}
    moment = Moment(number=3, at_s=1.0, event="lent", slot=2, generation=9, who="t\n", **about)
    words = moment_words(moment, start=14)
    assert "train k\\x1b[2J" in words
    assert "slot 2.9" in words
    assert all(line.isprintable() and len(line) <= 60 for line in f"{' ' * 14}{words}".split("\n"))
    assert "train" not in moment_words(moment, start=0, of_queue="train")
    assert "in train" in moment_words(moment, start=0, of_queue="other")
    assert as_object(moment, Clock(1.0, 1.0))["generation"] == 9
