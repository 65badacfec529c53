"""A real daemon that more peers dial than it may have connections, and than there are descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.daemon import LocalDaemon, local_daemon
from forebay.orchestrator_client import Staged, StagingClient
from forebay.sockets import fitting_connections

PATIENCE_S = 60.0
DESCRIPTORS = 4096
"""What the kernel allows by default. With fewer it depends on how soon the daemon's thread gets to run."""

LIMIT = 11
CONNECTS = 2000

DIAL = """
import socket, sys
address, held = sys.argv[1], []
for _ in range(int(sys.argv[2])):
    try:
        if address.startswith("ipc:"):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].connect(address[6:])
        else:
            host, _, port = address[6:].rpartition(":")
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex((host, int(port)))
    except OSError:
        held.pop()
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["ipc", "tcp"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    tcp: dict[str, Any] = dict.fromkeys(("control_endpoint", "data_endpoint"), "tcp://127.0.0.1:*")
    with local_daemon(
        slots=4,
        slot_initial_bytes=1 << 20,
        max_connections=LIMIT,
        log_file=tmp_path / "log",
        **(tcp if request.param == "tcp" else {}),
    ) as daemon:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        yield daemon


def descriptors(daemon: LocalDaemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def run_s(daemon: LocalDaemon) -> float:
    fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def dial(stack: ExitStack, address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", DIAL, address, str(CONNECTS)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


async def stage(client: StagingClient, key: str) -> None:
    assert isinstance(await client.stage({"x": np.arange(1000)}, key=key, queue="q"), Staged)


def test_thousands_of_connects_on_each_endpoint_neither_end_the_daemon_nor_stop_whom_it_serves(
    daemon: LocalDaemon, tmp_path: Path
) -> None:
    before = descriptors(daemon)

    async def main() -> None:
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            await stage(client, "before")
            with ExitStack() as stack:
                addresses = (daemon.control_endpoint, daemon.ready.data_endpoint, daemon.trainer_endpoint)
                for process in [dial(stack, address) for address in addresses]:
                    assert process.stdout is not None
                    assert process.stdout.readline()
                assert daemon.process.poll() is None
                await client.status()
                await stage(client, "at the limit")
                assert descriptors(daemon) <= before + 3 * LIMIT + 2
                spent = run_s(daemon)
                await asyncio.sleep(0.5)  # what is measured is what it does while nobody asks anything
                assert run_s(daemon) - spent < 0.25
        # All have left: it takes others again.
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            await stage(client, "after")

    asyncio.run(main())
    log = (tmp_path / "log").read_text()
    for name in ("control", "data", "trainer"):
        assert log.count(f"connections_full endpoint={name}_endpoint max_connections={LIMIT}") == 1


def test_descriptors_that_do_not_suffice_lower_the_limit_and_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    fitting = fitting_connections(1024, setting="max_connections", endpoints=3, others=1)
    assert 1 <= fitting < 16
    assert f"connections_lowered max_connections={fitting} wanted=1024 descriptors=256" in caplog.text


def test_a_burst_that_is_not_looked_at_fits_where_descriptors_abound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20_000, 20_000))
    assert fitting_connections(1024, setting="max_connections", endpoints=3, others=1) == 1024
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    fitting = fitting_connections(1024, setting="max_connections", endpoints=3, others=1)
    assert 3 * (fitting + 1001) + fitting < 4096


def dialled(endpoint: str) -> socket.socket:
    if endpoint.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE_S)
        connection.connect(endpoint.removeprefix("ipc://"))
        return connection
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def is_closed(connection: socket.socket, within_s: float) -> bool:
    """Reads on, past ZeroMQ's greeting, until the end, or until nothing more comes."""
    connection.settimeout(within_s)
    try:
        while connection.recv(1024):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


def test_a_connection_that_is_refused_is_closed(daemon: LocalDaemon) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(dialled(daemon.control_endpoint)) for _ in range(LIMIT + 1)]
        assert is_closed(held[-1], PATIENCE_S)
        assert not is_closed(held[0], 0.3)
