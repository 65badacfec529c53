"""Waiting for a micro-batch, resetting a queue and looking: what comes back, and what is said of what does not."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from forebay import TrainerHandle
from forebay.orchestrator_client import StagingClient
from forebay.wire import (
    Await,
    ControlRequest,
    GetStatus,
    Gone,
    Hello,
    MicroBatchGoneError,
    MicroBatchState,
    Reached,
    RefusalCode,
    Refused,
    RefusedError,
    Reset,
    UsageError,
    WaitTimeoutError,
    WasReset,
)

from .daemon_talk import SMALL, Answers, Talk, ignore, talk
from .fake_daemon import FakeDaemon


def test_a_wait_returns_the_state_that_was_reached(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Await):
            return None
        return [Reached(id=request.id, state=MicroBatchState.CONSUMED)] if len(daemon.of_kind(Await)) > 3 else []

    with FakeDaemon(shm_dir, answer) as daemon:
        state = talk(daemon.endpoint, lambda client: client.wait("k", queue="q", until="ready"))
        waits = daemon.of_kind(Await)
    assert state is MicroBatchState.CONSUMED
    assert {(wait.id, wait.key, wait.queue, wait.until) for wait in waits} == {(waits[0].id, "k", "q", "ready")}
    assert len(waits) == 4, "repeated, so that the daemon does not forget it"


def test_a_wait_for_what_is_gone_raises_with_state_and_reason(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Await):
            return None
        return [Gone(id=request.id, state=MicroBatchState.LOST, reason="its trainer, pid 4711, died")]

    with FakeDaemon(shm_dir, answer) as daemon, pytest.raises(MicroBatchGoneError) as caught:
        talk(daemon.endpoint, lambda client: client.wait("k"))
    assert (caught.value.key, caught.value.state) == ("k", "lost")
    assert caught.value.reason == "its trainer, pid 4711, died"


def test_a_wait_for_an_unknown_key_raises_with_the_code(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Await):
            return None
        return [Refused(id=request.id, code=RefusalCode.UNKNOWN_KEY, words="no 'k'")]

    with FakeDaemon(shm_dir, answer) as daemon, pytest.raises(RefusedError) as caught:
        talk(daemon.endpoint, lambda client: client.wait("k"))
    assert caught.value.code == RefusalCode.UNKNOWN_KEY


def test_a_wait_that_ends_without_its_event_says_what_it_waited_for(shm_dir: Path) -> None:
    with FakeDaemon(shm_dir, ignore) as daemon, pytest.raises(WaitTimeoutError, match="'k' to be on_device"):
        talk(daemon.endpoint, lambda client: client.wait("k", until="on_device", timeout_s=0.1))


def test_short_requests_that_get_no_answer_say_what_they_waited_for(shm_dir: Path) -> None:
    def answer(_: ControlRequest) -> Answers:
        return None

    with FakeDaemon(shm_dir, answer) as daemon:
        with pytest.raises(WaitTimeoutError, match="the reset of queue 'q'"):
            talk(daemon.endpoint, lambda client: client.reset(queue="q"), timeout_s=1.0)
        with pytest.raises(WaitTimeoutError, match="the daemon's status"):
            talk(daemon.endpoint, lambda client: client.status(), timeout_s=1.0)
        assert daemon.of_kind(GetStatus)


def test_a_reset_returns_how_many_were_dropped(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return [WasReset(id=request.id, dropped=3)] if isinstance(request, Reset) else None

    with FakeDaemon(shm_dir, answer) as daemon:
        assert talk(daemon.endpoint, lambda client: client.reset(queue="q")) == 3
        assert daemon.of_kind(Reset)[0].queue == "q"


@pytest.mark.parametrize("name", ["", "x" * 33, 7, "\ud800"])
def test_what_is_no_name_is_refused_before_anything_is_asked(shm_dir: Path, name: Any) -> None:
    calls: dict[str, list[Talk]] = {
        "the name of a queue": [
            lambda client: client.wait("k", queue=name),
            lambda client: client.reset(queue=name),
            lambda client: client.advance(1, queue=name),
            lambda client: client.stage(SMALL, key="k", queue=name),
        ],
        "the key of a micro-batch": [
            lambda client: client.wait(name),
            lambda client: client.stage(SMALL, key=name),
        ],
    }

    async def all_calls(client: StagingClient) -> None:
        for what, of_it in calls.items():
            for call in of_it:
                with pytest.raises(UsageError, match=what):
                    await call(client)

    with FakeDaemon(shm_dir, ignore) as daemon:
        talk(daemon.endpoint, all_calls)
        assert [type(request) for request in daemon.requests] == [Hello]


@pytest.mark.parametrize("owner", [StagingClient, TrainerHandle], ids=lambda owner: owner.__name__)
def test_a_queue_is_given_by_its_name_wherever_it_is_given(owner: Any) -> None:
    things = (getattr(owner, name) for name in dir(owner) if not name.startswith("_"))
    functions = [owner.__init__, *(thing for thing in things if inspect.isfunction(thing))]
    found = [(function, inspect.signature(function).parameters.get("queue")) for function in functions]
    kinds = {function.__name__: queue.kind for function, queue in found if queue is not None}
    assert kinds
    assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}, kinds


def test_every_wait_ends_in_time_however_many_there_are_and_however_long_the_daemon_is_away(
    shm_dir: Path,
) -> None:
    # More requests than ZeroMQ buffers for a peer that is away.
    async def many(client: StagingClient) -> list[BaseException | object]:
        fake.__exit__(None, None, None)
        calls = [client.wait(f"key{index}", timeout_s=0.2) for index in range(1500)]
        return await asyncio.gather(*calls, return_exceptions=True)

    fake = FakeDaemon(shm_dir, ignore)
    results = talk(fake.endpoint, many, retry_s=1.0)
    assert {type(result) for result in results} == {WaitTimeoutError}
