"""Who comes to the wrong address is told so, and which one is meant."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import LocalDaemon
from forebay.wire import ProtocolError, RefusedError, SettingError, WaitTimeoutError

from ..sockets.key_files import KeyFiles
from .processes import StartDaemon

SHORT_S = 1.0
"""Seconds after which a client gives up that can never be let in."""


async def greet(endpoint: str) -> None:
    async with forebay.StagingClient(endpoint, timeout_s=60):
        raise AssertionError("it was let in")


def test_a_trainer_at_the_control_endpoint_is_told_which_one_it_needs(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with pytest.raises(
        RefusedError, match=r"no trainer endpoint.*set trainer_endpoint \(FOREBAY_TRAINER_ENDPOINT"
    ):
        forebay.attach(endpoint=daemon.control_endpoint, timeout_s=60)


def test_a_sender_at_the_trainer_endpoint_is_told_which_one_it_needs(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with pytest.raises(
        ProtocolError, match=r"control_endpoint is not what it should be.*FOREBAY_CONTROL_ENDPOINT"
    ):
        asyncio.run(greet(daemon.trainer_endpoint))


TCP: dict[str, Any] = dict.fromkeys(("control_endpoint", "data_endpoint"), "tcp://127.0.0.1:*")
DATA_FOR_CONTROL = r"or this is not its control endpoint \(a daemon's data endpoint\?\)$"


def data_endpoint_of(daemon: LocalDaemon, **keys: Any) -> str:
    async def ask() -> str:
        async with forebay.StagingClient(daemon.control_endpoint, **keys) as client:
            return client._data_target().endpoint

    return asyncio.run(ask())


async def give_up(endpoint: str, **keys: Any) -> None:
    async with forebay.StagingClient(endpoint, timeout_s=SHORT_S, **keys):
        raise AssertionError("it was let in")


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_client_at_the_data_endpoint_hears_that_it_may_be_that(
    start_daemon: StartDaemon, tmp_path: Path, has_keys: bool
) -> None:
    files = KeyFiles(tmp_path, "alice")
    files.authorise(files.entry("alice", "stage"))
    daemon = start_daemon(**TCP, **(files.server() if has_keys else {}))
    keys = files.client("alice") if has_keys else {}
    with pytest.raises(WaitTimeoutError, match=DATA_FOR_CONTROL):
        asyncio.run(give_up(data_endpoint_of(daemon, **keys), **keys))


def test_a_client_at_the_data_endpoint_of_the_file_system_is_not_asked_for_keys(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    words = r"in the handshake: this is not its control endpoint \(a daemon's data endpoint\?\)$"
    with pytest.raises(WaitTimeoutError, match=words):
        asyncio.run(give_up(data_endpoint_of(daemon)))


@pytest.mark.parametrize("endpoint", ["tcp://localhost:5555", "foo", "inproc://x"])
def test_a_trainer_attaches_on_its_own_host_alone(endpoint: str) -> None:
    with pytest.raises(SettingError) as caught:
        forebay.attach(endpoint=endpoint)
    assert str(caught.value) == (
        f"setting trainer_endpoint; got {endpoint}; limit an ipc:// address: trainers share the daemon's memory"
    )


@pytest.mark.parametrize(
    ("client", "arguments", "setting"),
    [
        (forebay.StagingClient, ("foo",), "control_endpoint"),
        (forebay.TrainerHandle, ("foo",), "worker_endpoint"),
        (lambda endpoint: forebay.TrainerHandle(control_endpoint=endpoint), ("foo",), "control_endpoint"),
    ],
    ids=range(3),
)
def test_what_is_no_address_is_refused_at_once(client: Any, arguments: tuple[str, ...], setting: str) -> None:
    with pytest.raises(SettingError) as caught:
        client(*arguments)
    assert str(caught.value) == f"setting {setting}; got foo; limit an ipc:// or tcp:// address"


def test_a_private_daemon_shows_both_of_its_addresses(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    assert repr(daemon) == (
        f"LocalDaemon(pid={daemon.pid}, control_endpoint={daemon.control_endpoint!r},"
        f" trainer_endpoint={daemon.trainer_endpoint!r})"
    )
