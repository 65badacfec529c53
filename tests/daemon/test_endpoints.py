"""Endpoints and pools that cannot be had, and who has them; with real daemons."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from typer.testing import CliRunner

import forebay
from forebay.cli.app import app
from forebay.daemon import LocalDaemon, Settings, local_daemon
from forebay.orchestrator_client import StagingClient
from forebay.shm import this_peer
from forebay.sockets import Endpoint
from forebay.wire import HeldError, HostError, Peer, SettingError, Status

PATIENCE_S = 60.0
ME = Peer(name="test daemon", pid=os.getpid(), host="here")
SMALL: dict[str, Any] = {"slots": "1", "slot_initial_bytes": "65536"}


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def bind(context: zmq.Context[zmq.Socket[bytes]], address: str) -> Endpoint:
    return Endpoint(context, zmq.ROUTER, address, setting="control_endpoint", peer=ME, max_frame_bytes=1 << 20)


def serve(*flags: str, **settings: str) -> tuple[int, str]:
    """Runs `forebay serve` where it must fail; returns its exit code and its last line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {f"FOREBAY_{name.upper()}": value for name, value in (SMALL | settings).items()}
    environment["PYTHONPATH"] = str(Path(forebay.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "forebay.cli", "serve", *flags],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return done.returncode, lines[0]


def settings_in(folder: Path, name: str) -> dict[str, Any]:
    """Returns endpoints and a pool of a daemon's own."""
    endpoints = {f"{kind}_endpoint": f"ipc://{folder}/{name}-{kind}" for kind in ("control", "data", "trainer")}
    return endpoints | {"pool": str(folder / name)}


def status_of(daemon: LocalDaemon) -> Status:
    async def ask() -> Status:
        async with StagingClient(daemon.control_endpoint, timeout_s=PATIENCE_S) as client:
            return await client.status()

    return asyncio.run(ask())


# --- addresses that cannot be ---


def test_an_ipc_path_of_107_bytes_is_bound_and_one_of_108_is_refused(
    shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    room = 107 - len(str(shm_dir)) - 1
    endpoint = bind(context, f"ipc://{shm_dir}/{'x' * room}")
    endpoint.close(linger_ms=0)
    with pytest.raises(SettingError) as caught:
        bind(context, f"ipc://{shm_dir}/{'x' * (room + 1)}")
    for word in ("control_endpoint", "108 bytes", "limit 107 bytes", "shorter"):
        assert word in str(caught.value)
    assert list(shm_dir.iterdir()) == []


def test_a_missing_folder_is_named(shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with pytest.raises(HostError, match=f"control_endpoint: there is no folder {shm_dir}/missing"):
        bind(context, f"ipc://{shm_dir}/missing/control")


@pytest.mark.parametrize(
    "address",
    ["", "control", "inproc://control", "http://localhost", "ipc://", "ipc:///", "ipc:///dev/shm/", "tcp"],
)
def test_what_is_no_address_is_a_wrong_setting(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    with pytest.raises(SettingError, match="control_endpoint"):
        bind(context, address)


def test_a_file_that_is_no_socket_is_not_removed(shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    (shm_dir / "notes.txt").write_text("mine")
    with pytest.raises(SettingError, match="a path that is free or a socket's"):
        bind(context, f"ipc://{shm_dir}/notes.txt")
    assert [path.read_text() for path in shm_dir.iterdir()] == ["mine"]


@pytest.mark.parametrize("address", ["tcp://", "tcp://127.0.0.1", "tcp://no.such.host:1"])
def test_a_tcp_address_that_cannot_be_bound_is_named(
    context: zmq.Context[zmq.Socket[bytes]], address: str
) -> None:
    with pytest.raises(HostError) as caught:
        bind(context, address)
    assert f"control_endpoint {address} cannot be bound" in str(caught.value)


def test_a_wildcard_port_is_told_as_the_port_that_it_became(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    endpoint = bind(context, "tcp://127.0.0.1:*")
    port = int(endpoint.address.rpartition(":")[2])
    assert endpoint.address == f"tcp://127.0.0.1:{port}"
    endpoint.close(linger_ms=0)


def test_a_closed_endpoint_leaves_neither_socket_nor_lock(
    shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    for _ in range(3):
        endpoint = bind(context, f"ipc://{shm_dir}/control")
        assert {path.name for path in shm_dir.iterdir()} == {"control", "control.lock"}
        endpoint.close(linger_ms=0)
        assert list(shm_dir.iterdir()) == []


def test_a_path_whose_daemon_was_killed_is_taken_over(
    shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    (shm_dir / "control.lock").write_text("whatever it wrote")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(shm_dir / "control"))
    bind(context, f"ipc://{shm_dir}/control").close(linger_ms=0)


# --- addresses that somebody has ---


def test_an_ipc_path_is_not_taken_from_a_living_process(
    shm_dir: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    endpoint = bind(context, f"ipc://{shm_dir}/control")
    with pytest.raises(HeldError, match=f"control.lock is held by test daemon pid {os.getpid()} on here"):
        bind(context, f"ipc://{shm_dir}/control")
    assert (shm_dir / "control").is_socket()
    endpoint.close(linger_ms=0)


def test_a_port_of_a_process_that_says_nothing_is_held_by_a_stranger(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        with pytest.raises(HeldError) as caught:
            bind(context, address)
    assert f"control_endpoint {address} is held by a process that does not say who it is" in str(caught.value)


def test_a_port_of_a_process_that_speaks_something_else_is_held_by_a_stranger(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    with context.socket(zmq.ROUTER) as stranger:
        port = stranger.bind_to_random_port("tcp://127.0.0.1")

        def answer() -> None:
            routing, _ = stranger.recv_multipart()
            stranger.send_multipart([routing, b"who are you?"])

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HeldError, match="does not speak Forebay's protocol"):
            bind(context, f"tcp://127.0.0.1:{port}")
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "*"])
def test_a_port_of_another_daemon_is_refused_with_that_daemons_pid(shm_dir: Path, host: str) -> None:
    first = (
        settings_in(shm_dir, "first")
        | {"control_endpoint": f"tcp://{host}:*", "data_endpoint": f"tcp://{host}:*"}
        | {"insecure": "true"}
        | SMALL
    )
    with local_daemon(**first) as daemon:
        port = daemon.control_endpoint.rpartition(":")[2]
        second = settings_in(shm_dir, "second") | {
            "control_endpoint": f"tcp://{host}:{port}",
            "data_endpoint": f"tcp://{host}:*",
            "insecure": "true",
        }
        code, line = serve(**second)
        assert code == 3
        assert f"control_endpoint tcp://{host}:{port} is held by forebay daemon pid {daemon.pid}" in line
        assert not (shm_dir / "second").exists()
        assert daemon.process.poll() is None


@pytest.mark.parametrize("shared", ["pool", "control_endpoint", "data_endpoint", "trainer_endpoint"])
def test_of_two_daemons_on_one_pool_or_endpoint_the_second_exits_and_the_first_serves_on(
    shm_dir: Path, shared: str
) -> None:
    first = settings_in(shm_dir, "first")
    second = settings_in(shm_dir, "second") | {shared: first[shared]}
    with local_daemon(**first, **SMALL) as daemon:
        before = sorted(shm_dir.rglob("*"))
        code, line = serve(**second)
        assert code == 3
        assert f"forebay daemon pid {daemon.pid} on {this_peer('').host}" in line
        assert first[shared].removeprefix("ipc://") in line
        assert sorted(shm_dir.rglob("*")) == before, "the second leaves nothing, and takes nothing away"
        assert status_of(daemon).peer.pid == daemon.pid


def test_a_daemon_starts_on_what_a_killed_one_left(shm_dir: Path) -> None:
    settings = settings_in(shm_dir, "same") | SMALL
    for _ in range(3):
        daemon = local_daemon(**settings)
        daemon.process.kill()
        daemon.process.wait(PATIENCE_S)
        assert (shm_dir / "same-control").is_socket()
        daemon.close()
    with local_daemon(**settings) as daemon:
        assert status_of(daemon).peer.pid == daemon.pid
    assert list(shm_dir.iterdir()) == []


# --- the command ---


def test_a_wrong_setting_ends_the_command_with_one_line_and_code_2(shm_dir: Path) -> None:
    code, line = serve(**settings_in(shm_dir, "x") | {"slots": "0"})
    assert (code, line) == (2, "forebay: setting slots; got 0; limit 1 to 1024")
    assert list(shm_dir.iterdir()) == []


def test_a_flag_wins_over_the_environment_for_the_command(shm_dir: Path) -> None:
    code, line = serve("--slots", "2000", **settings_in(shm_dir, "x"))
    assert (code, line) == (2, "forebay: setting slots; got 2000; limit 1 to 1024")


def test_a_pool_without_a_parent_folder_ends_the_command_with_code_1(shm_dir: Path) -> None:
    code, line = serve(**settings_in(shm_dir, "x") | {"pool": str(shm_dir / "missing" / "pool")})
    assert code == 1
    assert f"{shm_dir}/missing/pool" in line


def test_the_commands_help_lists_every_setting() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert result.exit_code == 0
    for name in Settings.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in result.output


def test_a_local_daemon_refuses_a_setting_that_there_is_not() -> None:
    with pytest.raises(SettingError, match="slotz"):
        local_daemon(slotz=3)


def test_a_local_daemon_that_cannot_start_says_why(shm_dir: Path) -> None:
    with pytest.raises(HostError, match="setting slots; got 0; limit 1 to 1024"):
        local_daemon(**settings_in(shm_dir, "x"), slots=0)
    name = uuid.uuid4().hex
    with pytest.raises(HostError, match=f"there is no folder /dev/shm/{name}"):
        local_daemon(**settings_in(shm_dir, "x") | {"data_endpoint": f"ipc:///dev/shm/{name}/data"})
    assert list(shm_dir.iterdir()) == []
