"""The hello: what it says, who answers it wrongly or not at all, and a client that is not open."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from forebay.orchestrator_client import StagingClient, server_link
from forebay.orchestrator_client.server_kind import DAEMON
from forebay.orchestrator_client.server_link import ServerLink
from forebay.sockets import Finding, Who
from forebay.wire import (
    PROTOCOL_VERSION,
    BrokenError,
    ClosedError,
    ControlRequest,
    Hello,
    Limits,
    Offer,
    RefusalCode,
    Refused,
    SettingError,
    VersionMismatchError,
    WaitTimeoutError,
    words_of,
)

from .daemon_talk import RETRY_S, SMALL, Answers, ignore, nothing, talk
from .fake_daemon import PATIENCE_S, FakeDaemon, staged


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


def test_limits_are_those_of_the_welcome(shm_dir: Path) -> None:
    def answer(request: ControlRequest) -> Answers:
        if isinstance(request, Hello):
            return [daemon.welcome(request, limits=Limits(chunk_bytes=4096, max_leaves=1))]
        return [staged(request)] if isinstance(request, Offer) else None

    with FakeDaemon(shm_dir, answer) as daemon:
        with pytest.raises(Exception, match="too many arrays"):
            talk(daemon.endpoint, lambda client: client.stage({"a": np.zeros(1), "b": np.zeros(1)}, key="k"))
        assert daemon.of_kind(Offer) == []
