"""Who fails to get in at a daemon or a worker is counted in its status, at each of its tcp endpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

from forebay import StagingClient, TrainerHandle
from forebay.sockets import load_client_keys

from ..sockets.key_files import KeyFiles
from .processes import EVENT_S, StartDaemon
from .served import Served

TCP = "tcp://127.0.0.1:*"
REASON = "handshake_failed_wrong_server_key"


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    files = KeyFiles(tmp_path, "alice", "eve")
    files.authorise(files.entry("alice", "inspect"))
    return files


async def knock_until_counted(
    files: KeyFiles, endpoints: list[str], counters: Callable[[], Awaitable[Mapping[str, int]]]
) -> None:
    """Dials each endpoint once with a wrong server's key, and waits until the status counts them."""
    keys = load_client_keys(**files.client("alice", server="eve"), server_setting="server_key_file")
    assert keys is not None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ExitStack() as undo:
        undo.callback(context.term)
        for endpoint in endpoints:
            stranger = context.socket(zmq.DEALER)
            undo.callback(stranger.close, linger=0)
            stranger.reconnect_ivl = -1
            keys.use(stranger, endpoint)
            stranger.connect(endpoint)
        give_up_at = time.monotonic() + EVENT_S
        while (counted := (await counters()).get(REASON, 0)) < len(endpoints):
            assert time.monotonic() < give_up_at, counted
            await asyncio.sleep(0.02)
    assert counted == len(endpoints)


def test_a_daemon_tells_who_failed_to_get_in_and_its_status_counts_them(
    start_daemon: StartDaemon, files: KeyFiles, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    daemon = start_daemon(control_endpoint=TCP, data_endpoint=TCP, log_file=log, **files.server())
    options: dict[str, Any] = {"timeout_s": EVENT_S, **files.client("alice")}

    async def run() -> None:
        async with StagingClient(daemon.control_endpoint, **options) as client:

            async def counters() -> Mapping[str, int]:
                return (await client.status()).counters

            began = time.monotonic()
            await knock_until_counted(files, [daemon.control_endpoint, daemon.ready.data_endpoint], counters)
            [last] = (await client.status()).faults
            assert last.counter == REASON
            assert 0 <= last.age_s <= time.monotonic() - began
            # Unknown where the connection was over before the daemon looked.
            assert last.by == "unknown" or last.by.startswith("127.0.0.1:")

    asyncio.run(run())
    for name in ("control", "data"):
        assert f"handshake_failed endpoint={name}_endpoint peer=" in log.read_text()


def test_a_worker_counts_in_its_status_who_failed_to_get_in(shm_dir: Path, files: KeyFiles) -> None:
    async def run() -> None:
        async with TrainerHandle(served.endpoint, timeout_s=EVENT_S, **files.client("alice")) as handle:

            async def counters() -> Mapping[str, int]:
                return (await handle.status()).counters

            await knock_until_counted(files, [served.endpoint, handle._calls.welcome.data_endpoint], counters)

    with Served(shm_dir, worker_endpoint=TCP, worker_data_endpoint=TCP, **files.server()) as served:
        asyncio.run(run())
