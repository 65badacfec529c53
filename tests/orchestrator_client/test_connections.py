"""When a connection is given up for another one."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from forebay import StagingClient, TrainerHandle
from forebay.wire import CONNECT_TIMEOUT_MS, CONTROL_HEARTBEAT_TIMEOUT_MS, HEARTBEAT_MS, WaitTimeoutError

from ..sockets.full_endpoint import full_endpoint
from ..sockets.key_files import KeyFiles
from .hanging_up import hanging_up

SHORT_S = 1.0
"""Seconds after which a client gives up that can never be let in."""


@pytest.mark.parametrize("kind", [StagingClient, TrainerHandle])
def test_a_silent_server_is_dialled_anew_twice_before_it_is_taken_to_be_gone(kind: type) -> None:
    given_up_ms = HEARTBEAT_MS + CONTROL_HEARTBEAT_TIMEOUT_MS
    silence_s = inspect.signature(kind).parameters["silence_s"].default
    assert given_up_ms + 2 * CONNECT_TIMEOUT_MS < 1000 * silence_s


def test_a_client_has_these_limits() -> None:
    socket = StagingClient("ipc:///nowhere")._link._socket
    try:
        assert socket.heartbeat_ivl == HEARTBEAT_MS
        assert socket.heartbeat_timeout == CONTROL_HEARTBEAT_TIMEOUT_MS
        assert socket.connect_timeout == CONNECT_TIMEOUT_MS
    finally:
        socket.context.destroy(linger=0)


def words_of_failure(endpoint: str, **keys: Any) -> str:
    async def run() -> None:
        async with StagingClient(endpoint, timeout_s=SHORT_S, **keys):
            pass

    with pytest.raises(WaitTimeoutError) as caught:
        asyncio.run(run())
    return str(caught.value)


def test_a_full_daemon_is_told_from_one_that_is_elsewhere(shm_dir: Path, tmp_path: Path) -> None:
    files = KeyFiles(tmp_path, "alice")
    with full_endpoint(f"ipc://{shm_dir}/control") as endpoint:
        for keys in ({}, files.client("alice")):
            words = words_of_failure(endpoint.address, **keys)
            assert "it takes no more connections now (max_connections)" in words
            assert "key" not in words
            assert "elsewhere" not in words
            assert "start" not in words.replace("start it with more max_connections", ""), "one is there"


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_who_is_hung_up_on_in_the_handshake_is_asked_for_keys_at_tcp_alone(shm_dir: Path, kind: str) -> None:
    with hanging_up(shm_dir / "control" if kind == "ipc" else None) as address:
        words = words_of_failure(address)
    assert ("if it has keys, set client_key_file" in words) == (kind == "tcp")
    assert "start one (forebay serve)" not in words, "there is one"
