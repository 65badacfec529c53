"""Moments are read in order, each once, also across a daemon's restart; what cannot be told any more is said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from forebay.cli.events import as_object, moment_words
from forebay.cli.history import Clock, Reading, read_all, read_last
from forebay.daemon.history import History
from forebay.wire import Event, Events, GetEvents, Moment


class FakeDaemon:
    """Answers from a history as a daemon does, but in short pages."""

    def __init__(self, count: int, limit: int = 10_000, epoch: str = "one") -> None:
        self.history = History(limit)
        self.epoch = epoch
        self.happen(count)

    def happen(self, count: int) -> None:
        for _ in range(count):
            number = self.history.last + 1
            self.history.note(float(number), Event.READY, {"queue": "train", "key": f"k{number % 2}"})

    async def ask(self, request: GetEvents, *_: Any, **__: Any) -> Events:
        after = self.history.last if request.after < 0 else request.after
        told = self.history.after(after, request.limit, queue=request.queue, key=request.key)
        moments, last = told
        return Events(moments=moments, last=last, oldest=self.history.oldest, now_s=5000.0, epoch=self.epoch)


def numbers(moments: Sequence[Moment]) -> list[int]:
    return [moment.number for moment in moments]


def test_all_pages_are_read() -> None:
    moments, _ = asyncio.run(read_all(FakeDaemon(2500), Reading()))  # type: ignore[arg-type]
    assert numbers(moments) == list(range(1, 2501))


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
