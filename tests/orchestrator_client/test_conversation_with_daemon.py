"""What the client makes of a daemon that answers late, twice, wrongly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import TrainerHandle
from forebay.orchestrator_client import Refusal, Staged, StagingClient, server_link
from forebay.orchestrator_client.server_kind import DAEMON
from forebay.orchestrator_client.server_link import ServerLink
from forebay.sockets import Finding, Who
from forebay.wire import (
    PROTOCOL_VERSION,
    Abandon,
    Await,
    BrokenError,
    ClosedError,
    ControlReply,
    ControlRequest,
    GetStatus,
    Gone,
    Goodbye,
    Hello,
    Limits,
    MicroBatchGoneError,
    MicroBatchState,
    Offer,
    ProtocolError,
    Reached,
    RefusalCode,
    Refused,
    RefusedError,
    Reset,
    SettingError,
    UsageError,
    VersionMismatchError,
    WaitTimeoutError,
    WasReset,
    words_of,
)

from .fake_daemon import LIMITS, PATIENCE_S, FakeDaemon, grant, staged

RETRY_S = 0.05
SMALL = {"x": np.arange(100, dtype=np.int32)}
BIG = {"x": np.zeros(48 << 20, np.uint8)}
BIG_SPANS = (48 << 20) // LIMITS.chunk_bytes

Answers = Iterable[ControlReply | bytes] | None
Talk = Callable[[StagingClient], Awaitable[Any]]


def talk(endpoint: str, what: Talk, *, timeout_s: float = PATIENCE_S, retry_s: float = RETRY_S) -> Any:
    """Runs a conversation with a client."""

    async def run() -> Any:
        async with StagingClient(endpoint, timeout_s=timeout_s, retry_s=retry_s) as client:
            return await what(client)

    return asyncio.run(run())


async def nothing(_: StagingClient) -> None:
    pass


def ignore(_: ControlRequest) -> Answers:
    return None


# --- the hello ---


@pytest.mark.parametrize("address", ["ipc://{folder}/nobody", "tcp://127.0.0.1:1"])
def test_without_a_daemon_the_error_names_address_setting_and_time(shm_dir: Path, address: str) -> None:
    endpoint = address.format(folder=shm_dir)
    with pytest.raises(WaitTimeoutError) as caught:
        talk(endpoint, nothing, timeout_s=0.1)
    for word in (f"control_endpoint {endpoint}", "0.1 s", "forebay serve", "FOREBAY_CONTROL_ENDPOINT"):
        assert word in str(caught.value)
    assert isinstance(caught.value, TimeoutError)


def test_to_find_out_why_nobody_answers_never_holds_up_the_error(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_know = threading.Event()

    def look(_: str) -> Finding:
        may_know.wait(PATIENCE_S)
        return Finding(Who.SOMEBODY, "too late")

    monkeypatch.setattr(server_link, "why_silent", look)
    try:
        with pytest.raises(WaitTimeoutError, match=r"within 0\.1 s; start one") as caught:
            talk(f"ipc://{shm_dir}/nobody", nothing, timeout_s=0.1)
        assert "too late" not in str(caught.value)
        assert not may_know.is_set()
    finally:
        may_know.set()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
def test_where_the_look_fails_as_well_the_error_says_that_nobody_answered(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def look(_: str) -> Finding:
        raise error

    monkeypatch.setattr(server_link, "why_silent", look)
    with (
        caplog.at_level(logging.INFO, "forebay.client"),
        pytest.raises(WaitTimeoutError, match=r"within 1 s; start one"),
    ):
        talk(f"ipc://{shm_dir}/nobody", nothing, timeout_s=1.0)
    assert f"look_failed endpoint=ipc://{shm_dir}/nobody reason={words_of(error)}" in caplog.text


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://", "ipc://" + "x" * 200])
def test_what_is_no_address_is_an_error_that_names_it_and_the_setting(endpoint: str) -> None:
    with pytest.raises(BrokenError if endpoint == "tcp://" else SettingError) as caught:
        talk(endpoint, nothing)
    assert "control_endpoint" in str(caught.value)
    assert endpoint.removeprefix("ipc://")[:50] in str(caught.value)


def test_a_hello_says_who_the_client_is(shm_dir: Path) -> None:
    with FakeDaemon(shm_dir, ignore) as daemon:
        talk(daemon.endpoint, nothing)
        [hello] = daemon.of_kind(Hello)
    assert (hello.version, hello.peer.name, hello.peer.pid) == (PROTOCOL_VERSION, "orchestrator", os.getpid())


def test_a_hello_without_an_answer_is_repeated(shm_dir: Path) -> None:
    def answer(_: ControlRequest) -> Answers:
        return None if len(daemon.requests) > 3 else []

    with FakeDaemon(shm_dir, answer) as daemon:
        talk(daemon.endpoint, nothing)
        assert len(daemon.of_kind(Hello)) == 4


@pytest.mark.parametrize("is_refused", [True, False])
def test_another_version_is_an_error_that_names_both(shm_dir: Path, is_refused: bool) -> None:
    def answer(request: ControlRequest) -> Answers:
        if is_refused:
            return [Refused(id=request.id, code=RefusalCode.VERSION, words="no", version=77)]
        return [daemon.welcome(request, version=77)]

    with FakeDaemon(shm_dir, answer) as daemon:
        with pytest.raises(VersionMismatchError) as caught:
            talk(daemon.endpoint, nothing)
        assert daemon.endpoint in str(caught.value)
    assert (caught.value.got, caught.value.limit) == (77, PROTOCOL_VERSION)


def test_a_client_outside_its_block_says_so(shm_dir: Path) -> None:
    async def run() -> None:
        client = StagingClient(f"ipc://{shm_dir}/nobody")
        with pytest.raises(ClosedError, match="async with"):
            await client.stage(SMALL, key="k")
        await client.close()
        await client.close()

    asyncio.run(run())


def test_a_link_that_is_closed_twice_at_once_ends_its_context_once(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        link = ServerLink(DAEMON, f"ipc://{shm_dir}/nobody", name="test", retry_s=PATIENCE_S)
        term, ends = link._context.term, 0

        def end() -> None:
            nonlocal ends
            ends += 1
            term()

        monkeypatch.setattr(link._context, "term", end)
        with link.talk():
            closes = [asyncio.create_task(link.close()) for _ in range(2)]
            await asyncio.sleep(0)
        await asyncio.gather(*closes)
        assert ends == 1

    asyncio.run(run())


def test_a_closed_client_says_so(shm_dir: Path) -> None:
    async def run() -> None:
        with FakeDaemon(shm_dir, ignore) as daemon:
            async with StagingClient(daemon.endpoint) as client:
                pass
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: client.stage(SMALL, key="k"),
                lambda: client.wait("k"),
                client.reset,
                client.status,
            ]
            for call in calls:
                with pytest.raises(ClosedError, match="closed"):
                    await call()

    asyncio.run(run())


def test_a_client_that_is_closed_meanwhile_says_so(shm_dir: Path) -> None:
    async def run() -> None:
        with FakeDaemon(shm_dir, ignore) as daemon:
            async with StagingClient(daemon.endpoint, retry_s=RETRY_S) as client:
                task = asyncio.create_task(client.stage(SMALL, key="k"))
                await asyncio.to_thread(daemon.wait_for, Offer)
            with pytest.raises(ClosedError, match="closed"):
                await task

    asyncio.run(run())


# --- lost answers ---


def test_lost_answers_are_asked_for_again_with_the_same_attempt(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        return [staged(request)] if len(daemon.of_kind(Offer)) > 5 else []

    with FakeDaemon(shm_dir, answer) as daemon:
        result = talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k"))
        offers = daemon.of_kind(Offer)
    assert isinstance(result, Staged)
    assert (result.key, result.payload_bytes) == ("k", 400)
    assert len(offers) >= 6, "one more may be on its way when the answer comes"
    assert len({(offer.id, offer.attempt, offer.manifest) for offer in offers}) == 1


def test_two_calls_for_the_same_key_are_two_attempts(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return [staged(request)] if isinstance(request, Offer) else None

    async def stage_twice(client: StagingClient) -> None:
        for _ in range(2):
            await client.stage(SMALL, key="k")

    with FakeDaemon(shm_dir, answer) as daemon:
        talk(daemon.endpoint, stage_twice)
        assert len({offer.attempt for offer in daemon.of_kind(Offer)}) == 2


def test_a_daemon_that_restarted_is_greeted_anew_and_the_offer_repeated(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        if len(daemon.of_kind(Offer)) < 3:
            return [Refused(id=request.id, code=RefusalCode.HELLO_FIRST, words="who are you?")]
        return [staged(request)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)
        kinds = [type(request).__name__ for request in daemon.requests]
        assert len({offer.attempt for offer in daemon.of_kind(Offer)}) == 1
    assert kinds == ["Hello", "Offer", "Hello", "Offer", "Hello", "Offer"]


def test_answers_to_nobody_and_garbage_are_passed_over(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        refused = Refused(id=request.id + 1000, code=RefusalCode.DROPPED, words="another's")
        return [b"\xff garbage", b"", refused, Refused(code=RefusalCode.BAD_REQUEST, words=""), staged(request)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)


def test_an_answer_of_another_kind_is_an_error(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return None if isinstance(request, Hello) else [daemon.welcome(request)]

    with FakeDaemon(shm_dir, answer) as daemon:
        for what in (
            lambda client: client.stage(SMALL, key="k"),
            lambda client: client.wait("k"),
            lambda client: client.reset(),
            lambda client: client.status(),
        ):
            with pytest.raises(ProtocolError, match="got Welcome"):
                talk(daemon.endpoint, what)


# --- ends ---


def test_a_refused_offer_is_a_result_with_code_and_words(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if isinstance(request, Offer):
            return [Refused(id=request.id, code=RefusalCode.NO_SLOT, words="slot 0 LENT 'a' for 9.0 s")]
        return None

    with FakeDaemon(shm_dir, answer) as daemon:
        result = talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k"))
        assert daemon.of_kind(Abandon) == []
    assert result == Refusal("k", RefusalCode.NO_SLOT, "slot 0 LENT 'a' for 9.0 s")


def test_a_daemon_that_stops_ends_every_call(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return [Goodbye(kept=False)] if isinstance(request, Reset) else None

    async def three(client: StagingClient) -> list[object]:
        calls: list[Awaitable[object]] = [client.stage(SMALL, key="k"), client.wait("l"), client.reset()]
        return await asyncio.gather(*calls, return_exceptions=True)

    with FakeDaemon(shm_dir, answer) as daemon:
        for error in talk(daemon.endpoint, three):
            assert isinstance(error, BrokenError)
            assert f"{daemon.endpoint} stopped" in str(error)


def test_a_daemon_that_keeps_its_pool_is_waited_for(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        return [staged(request)] if len(daemon.of_kind(Offer)) == 2 else [Goodbye(kept=True)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)
        assert len({offer.attempt for offer in daemon.of_kind(Offer)}) == 1


def test_a_call_that_gets_no_slot_in_time_says_so_and_abandons_its_attempt(shm_dir: Path) -> None:
    with FakeDaemon(shm_dir, ignore) as daemon:
        with pytest.raises(WaitTimeoutError) as caught:
            talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k", queue="q", timeout_s=0.2))
        [abandon] = daemon.wait_for(Abandon)
        assert (abandon.key, abandon.queue) == ("k", "q")
        assert {abandon.attempt} == {offer.attempt for offer in daemon.of_kind(Offer)}
    for word in ("a slot for 'k'", daemon.endpoint, "forebay status"):
        assert word in str(caught.value)


def test_a_call_that_is_not_complete_in_time_says_how_far_it_came(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        return [grant(request, (0, 1), received_bytes=123)] if isinstance(request, Offer) else None

    with FakeDaemon(shm_dir, answer) as daemon:
        with pytest.raises(WaitTimeoutError, match=r"'k' to be complete in slot 0 .*123 of 400 bytes"):
            talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k", timeout_s=1.0))
        assert len(daemon.wait_for(Abandon)) == 1


def test_a_cancelled_call_abandons_its_attempt(shm_dir: Path) -> None:
    async def cancel(client: StagingClient) -> None:
        task = asyncio.create_task(client.stage(SMALL, key="k"))
        await asyncio.to_thread(daemon.wait_for, Offer)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with FakeDaemon(shm_dir, ignore) as daemon:
        talk(daemon.endpoint, cancel)
        [abandon] = daemon.wait_for(Abandon)
        assert abandon.attempt == daemon.of_kind(Offer)[0].attempt


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_that_comes_together_with_an_answer_is_not_lost(shm_dir: Path, turns: int) -> None:
    async def run() -> None:
        link = ServerLink(DAEMON, f"ipc://{shm_dir}/nobody", name="test", retry_s=PATIENCE_S)
        request = GetStatus(id=1)
        with link.exchange(request) as exchange:

            async def wait_for_ever() -> None:
                while True:
                    await exchange.next(time.monotonic() + PATIENCE_S, "the end")

            task = asyncio.create_task(wait_for_ever())
            await asyncio.sleep(0)
            exchange.replies.put_nowait(WasReset(dropped=0))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert task.cancelled()
        await link.close()

    asyncio.run(run())


# --- chunks ---


def answer_with_grant(*missing: tuple[int, int]) -> Callable[[ControlRequest], Answers]:
    return lambda request: [grant(request, *missing)] if isinstance(request, Offer) else None


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("has_turn", [True, False])
def test_the_sender_stops_in_the_middle_of_a_big_transfer_when_its_call_is_cancelled(
    shm_dir: Path, has_turn: bool
) -> None:
    # Nobody reads: the thread waits for room in the middle of its chunks, for ever if nothing stops it.
    async def cancel(client: StagingClient) -> None:
        first = asyncio.create_task(client.stage(BIG, key="first"))
        await asyncio.to_thread(daemon.wait_for, Offer)
        second = asyncio.create_task(client.stage(BIG, key="second"))
        await asyncio.to_thread(daemon.wait_for, Offer, 6)
        before = open_descriptors()
        for task in (first, second) if has_turn else (second, first):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert open_descriptors() == before - 2
        assert not [thread for thread in threading.enumerate() if "sender" in thread.name]

    with FakeDaemon(shm_dir, answer_with_grant((0, BIG_SPANS)), reads_data=False) as daemon:
        talk(daemon.endpoint, cancel)
        assert {abandon.key for abandon in daemon.wait_for(Abandon, 2)} == {"first", "second"}


def test_a_call_times_out_while_another_ones_transfer_is_stuck(shm_dir: Path) -> None:
    async def both(client: StagingClient) -> None:
        stuck = asyncio.create_task(client.stage(BIG, key="stuck"))
        await asyncio.to_thread(daemon.wait_for, Offer)
        with pytest.raises(WaitTimeoutError, match="'k'"):
            await client.stage(SMALL, key="k", timeout_s=0.2)
        assert not stuck.done()
        stuck.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stuck

    with FakeDaemon(shm_dir, answer_with_grant((0, BIG_SPANS)), reads_data=False) as daemon:
        talk(daemon.endpoint, both)


def test_only_what_a_grant_says_is_missing_is_sent(shm_dir: Path) -> None:
    tree = {"x": np.zeros(10 * 4096, np.uint8)}

    async def stage(client: StagingClient) -> None:
        task = asyncio.create_task(client.stage(tree, key="k"))
        chunks = await asyncio.to_thread(daemon.wait_for_chunks, 3)
        assert sorted(chunk.span for chunk in chunks) == [2, 3, 7]
        assert {(chunk.slot, chunk.generation, chunk.token) for chunk in chunks} == {(0, 1, 7)}
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with FakeDaemon(shm_dir, answer_with_grant((2, 2), (7, 1))) as daemon:
        talk(daemon.endpoint, stage, retry_s=PATIENCE_S)
        assert len(daemon.chunks) == 3


def test_a_repeated_grant_is_followed_only_when_nothing_arrives_any_more(shm_dir: Path) -> None:
    tree = {"x": np.zeros(4 * 4096, np.uint8)}

    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        spans = [chunk.span for chunk in daemon.chunks]
        if not spans:
            return [grant(request, (0, 4))]
        if spans.count(3) > 1:
            return [staged(request)]
        # Two bytes more each time up to the fourth, then no more.
        return [grant(request, (3, 1), received_bytes=2 * min(4, len(daemon.of_kind(Offer))))]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(tree, key="k")), Staged)
        spans = [chunk.span for chunk in daemon.chunks]
        assert len(daemon.of_kind(Offer)) > 4
    assert sorted(spans)[:3] == [0, 1, 2]
    assert set(spans[3:]) == {3}, "bytes still arrived, and then only one span was missing"


def test_a_grant_with_another_token_has_everything_that_it_misses_sent(shm_dir: Path) -> None:
    tree = {"x": np.zeros(2 * 4096, np.uint8)}

    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        count = len(daemon.of_kind(Offer))
        return [staged(request)] if count == 3 else [grant(request, (0, 2), token=count)]

    with FakeDaemon(shm_dir, answer) as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(tree, key="k"), retry_s=0.3), Staged)
        sent = sorted((chunk.token, chunk.span) for chunk in daemon.chunks)
    assert sent == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_daemon_on_every_address_is_sent_data_where_the_client_dialled(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if not isinstance(request, Offer):
            return None
        return [grant(request, (0, 1))] if not daemon.chunks else [staged(request)]

    with FakeDaemon(shm_dir, answer, endpoint="tcp://127.0.0.1:*", data_endpoint="tcp://0.0.0.0:*") as daemon:
        assert isinstance(talk(daemon.endpoint, lambda client: client.stage(SMALL, key="k")), Staged)
        assert len(daemon.chunks) == 1


# --- waiting, resetting, looking ---


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


def test_limits_are_those_of_the_welcome(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if isinstance(request, Hello):
            return [daemon.welcome(request, limits=Limits(chunk_bytes=4096, max_leaves=1))]
        return [staged(request)] if isinstance(request, Offer) else None

    with FakeDaemon(shm_dir, answer) as daemon:
        with pytest.raises(Exception, match="too many arrays"):
            talk(daemon.endpoint, lambda client: client.stage({"a": np.zeros(1), "b": np.zeros(1)}, key="k"))
        assert daemon.of_kind(Offer) == []
