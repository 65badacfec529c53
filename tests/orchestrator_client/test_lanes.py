"""Lanes: one thing at a time each, looking again when woken, and ending when stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from forebay.orchestrator_client.lanes import Lanes, Work
from forebay.wire import BrokenError

from .virtual_loop import now, run_virtual


class Log:
    """What was done in a lane, and when."""

    def __init__(self) -> None:
        self.done: list[tuple[float, str]] = []
        self.broke: list[BaseException] = []
        self.todo: list[str] = []

    def next_work(self) -> Work | None:
        return self._work(self.todo.pop(0)) if self.todo else None

    async def _work(self, name: str) -> None:
        await asyncio.sleep(1)
        if name == "fails":
            raise ValueError(name)
        if name == "is cancelled":
            raise asyncio.CancelledError
        self.done.append((now(), name))

    def lanes(self) -> Lanes:
        lanes = Lanes(self.broke.append)
        lanes.start("test", self.next_work)
        return lanes


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    assert log.todo == []


def test_a_lane_does_one_thing_after_the_other_and_looks_again_when_it_is_woken(log: Log) -> None:
    async def main() -> None:
        log.todo = ["a", "b"]
        lanes = log.lanes()
        await asyncio.sleep(8)
        log.todo = ["c"]
        await asyncio.sleep(8)
        assert log.done == [(1, "a"), (2, "b")], "it was not told"
        lanes.wake()
        await asyncio.sleep(8)
        assert log.done[2:] == [(17, "c")]
        assert await lanes.stop(1) == []

    run_virtual(main())
    assert log.broke == []


def test_what_is_there_when_a_lane_is_woken_while_it_works_is_not_missed(log: Log) -> None:
    async def main() -> None:
        log.todo = ["a"]
        lanes = log.lanes()
        await asyncio.sleep(0.5)
        lanes.wake()
        log.todo = ["b"]
        await asyncio.sleep(8)
        assert log.done == [(1, "a"), (2, "b")]
        assert await lanes.stop(1) == []

    run_virtual(main())


@pytest.mark.parametrize(("name", "kind"), [("fails", ValueError), ("is cancelled", BrokenError)])
def test_a_lane_that_ends_by_itself_is_told_of(log: Log, name: str, kind: type[Exception]) -> None:
    async def main() -> None:
        log.todo = [name]
        lanes = log.lanes()
        await asyncio.sleep(8)
        assert [type(error) for error in log.broke] == [kind]
        await lanes.stop(1)
        assert len(log.broke) == 1

    run_virtual(main())


def test_stopping_cancels_what_a_lane_does_and_nothing_is_told(log: Log) -> None:
    async def main() -> None:
        log.todo = ["a"]
        lanes = log.lanes()
        await asyncio.sleep(0.5)
        assert await lanes.stop(1) == []
        assert now() == 0.5
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
    assert log.done == []
    assert log.broke == []


def test_lanes_that_were_never_started_are_stopped_at_once() -> None:
    async def main() -> None:
        assert await Lanes(list[BaseException]().append).stop(1) == []

    run_virtual(main())


def test_a_lane_that_ends_with_an_error_when_it_is_stopped_is_reported() -> None:
    async def turns() -> None:
        try:
            await asyncio.sleep(8)
        except asyncio.CancelledError:
            raise ValueError("turned") from None

    async def main() -> None:
        broke: list[BaseException] = []
        lanes = Lanes(broke.append)
        lanes.start("test", turns)
        await asyncio.sleep(1)
        assert await lanes.stop(1) == ["forebay test lane ended with ValueError: turned"]
        assert broke == []

    run_virtual(main())


def test_a_lane_that_does_not_end_is_reported() -> None:
    async def stays() -> None:
        while now() < 16:
            try:
                await asyncio.sleep(16 - now())
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        lanes = Lanes(list[BaseException]().append)
        lanes.start("test", stays)
        await asyncio.sleep(1)
        assert await lanes.stop(4) == ["forebay test lane still runs after 4 s"]
        assert now() == 5
        await asyncio.sleep(16)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it ends when what it does is over"

    run_virtual(main())
