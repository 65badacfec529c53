"""When a connection is given up for another one."""

from __future__ import annotations

import inspect

import pytest

from forebay import StagingClient, TrainerHandle
from forebay.wire import CONNECT_TIMEOUT_MS, CONTROL_HEARTBEAT_TIMEOUT_MS, HEARTBEAT_MS


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
