"""Threads that are made when they are needed, used again, never too many, and end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from forebay.trainer.crew import Crew
from forebay.wire import HostError

from .waiting import WAIT_S

NAME = "test-crew"


class Held:
    """Work that stands still until a test lets it go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.thread: threading.Thread | None = None
        self._may_end = threading.Event()

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.began.set()
        assert self._may_end.wait(WAIT_S), "nobody let the work end"

    def wait_until_begun(self) -> threading.Thread:
        assert self.began.wait(WAIT_S), "the work did not begin"
        assert self.thread is not None
        return self.thread

    def end(self) -> None:
        self._may_end.set()


class WatchedCrew(Crew):
    """A crew whose threads can be waited for."""

    def __init__(self, name: str, size: int) -> None:
        self.changed = threading.Condition()
        super().__init__(name, size)

    @property
    def _idle(self) -> int:
        return self._count

    @_idle.setter
    def _idle(self, count: int) -> None:
        with self.changed:
            self._count = count
            self.changed.notify_all()

    def settle(self, idle: int) -> None:
        """Waits until that many threads are idle."""
        with self.changed:
            assert self.changed.wait_for(lambda: self._count == idle, WAIT_S), f"{self} has no {idle} idle threads"


CrewOf = Callable[[int], WatchedCrew]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if NAME in thread.name]


@pytest.fixture
def crew_of() -> Iterator[CrewOf]:
    crews: list[WatchedCrew] = []

    def make(size: int) -> WatchedCrew:
        crews.append(WatchedCrew(NAME, size))
        return crews[-1]

    yield make
    for crew in crews:
        assert crew.close(WAIT_S), crew
    assert threads() == []


def test_a_crew_has_no_thread_before_there_is_work(crew_of: CrewOf) -> None:
    crew = crew_of(3)
    assert threads() == []
    assert repr(crew) == "Crew('test-crew', 0 of 3 threads, 0 idle)"


def test_work_runs_beside_other_work_up_to_the_size(crew_of: CrewOf) -> None:
    crew, work = crew_of(3), [Held() for _ in range(5)]
    for each in work:
        crew.submit(each)
    running = {each.wait_until_begun() for each in work[:3]}
    assert len(running) == len(threads()) == 3
    assert not work[3].began.is_set()
    for each in work:
        each.end()
    assert {each.wait_until_begun() for each in work[3:]} <= running
    assert len(threads()) == 3


def test_an_idle_thread_is_used_again(crew_of: CrewOf) -> None:
    crew, used = crew_of(3), []
    for _ in range(10):
        work = Held()
        work.end()
        crew.submit(work)
        used.append(work.wait_until_begun())
        crew.settle(1)
    assert len(set(used)) == 1
    assert len(threads()) == 1


def test_two_pieces_of_work_get_two_threads_though_one_is_idle(crew_of: CrewOf) -> None:
    crew, first = crew_of(2), Held()
    first.end()
    crew.submit(first)
    crew.settle(1)
    work = [Held(), Held()]
    for each in work:
        crew.submit(each)
    assert len({each.wait_until_begun() for each in work}) == 2
    for each in work:
        each.end()
    crew.settle(2)


def test_a_crew_of_one_keeps_the_order(crew_of: CrewOf) -> None:
    crew, done, order = crew_of(1), threading.Event(), []
    for number in range(200):
        crew.submit(lambda number=number: order.append(number))  # type: ignore[misc]
    crew.submit(done.set)
    assert done.wait(WAIT_S), "the work was not done"
    assert order == list(range(200))
    assert len(threads()) == 1


def test_work_that_many_threads_hand_over_is_all_done_and_never_by_too_many(
    crew_of: CrewOf,
) -> None:
    crew, done, all_done = crew_of(4), [], threading.Event()
    lock = threading.Lock()

    def work() -> None:
        with lock:
            done.append(threading.current_thread())
            if len(done) == 400:
                all_done.set()

    def hand_over() -> None:
        for _ in range(100):
            crew.submit(work)

    givers = [threading.Thread(target=hand_over) for _ in range(4)]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join()
    assert all_done.wait(WAIT_S), "the work was not done"
    assert len(set(done)) == len(threads()) <= 4


def test_what_work_refers_to_is_let_go_when_it_is_done(crew_of: CrewOf) -> None:
    class Payload:
        def __call__(self) -> None:
            pass

    crew, payload = crew_of(1), Payload()
    gone = weakref.ref(payload)
    crew.submit(payload)
    del payload
    crew.settle(1)
    gc.collect()
    assert gone() is None


def test_closing_lets_the_work_that_was_given_end() -> None:
    crew, first, done = Crew(NAME, 1), Held(), threading.Event()
    crew.submit(first)
    crew.submit(done.set)
    first.wait_until_begun()
    assert not crew.close(0), "it still works"
    first.end()
    assert done.wait(WAIT_S), "the second work was not done"
    assert crew.close(WAIT_S)
    assert threads() == []


def test_closing_a_crew_that_never_worked_does_nothing() -> None:
    assert Crew(NAME, 2).close(0)


def test_its_threads_keep_no_process_from_ending(crew_of: CrewOf) -> None:
    crew, work = crew_of(1), Held()
    crew.submit(work)
    assert work.wait_until_begun().daemon
    work.end()


def test_a_thread_that_cannot_be_had_is_an_error_and_the_crew_can_be_used_again(
    crew_of: CrewOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, never = crew_of(1), threading.Event()
    with monkeypatch.context() as patches:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patches.setattr(threading.Thread, "start", refuse)
        with pytest.raises(HostError, match="forebay-test-crew-0 cannot be started: can't start new thread"):
            crew.submit(never.set)
    done = threading.Event()
    crew.submit(done.set)
    assert done.wait(WAIT_S), "the work was not done"
    assert not never.is_set()
