"""Whether a real daemon is well, as a supervisor asks over HTTP."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path

import pytest

from forebay.daemon.http_address import http_address

from .http_looks import look
from .processes import StartDaemon, StartParty, see, slot_in

ANY = "127.0.0.1:0"


def test_a_daemon_that_works_is_healthy_and_ready_and_says_where(start_daemon: StartDaemon, shm_dir: Path) -> None:
    log = shm_dir / "log"
    daemon = start_daemon(http_endpoint=ANY, log_file=log)
    assert look(daemon, "/healthz")[:2] == (200, "ok\n")
    assert look(daemon, "/readyz")[:2] == (200, "ready\n")
    assert f"http endpoint={daemon.ready.http_endpoint}" in log.read_text()
    log.unlink()


def test_without_the_setting_there_is_no_server(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    assert daemon.ready.http_endpoint == ""
    assert _listening(daemon.pid) == []


def _listening(pid: int) -> list[str]:
    """Returns a process's own TCP sockets."""
    links = [link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[9] in inodes]


@pytest.mark.slow
def test_a_daemon_that_drains_is_healthy_and_not_ready(start_daemon: StartDaemon, start: StartParty) -> None:
    daemon = start_daemon(http_endpoint=ANY, drain_s=60.0)
    sender = start("orchestrator", daemon.control_endpoint, hold_chunk=2)
    sender.until("filling")
    see(daemon, slot_in("FILLING"))
    daemon.process.send_signal(signal.SIGTERM)
    see(daemon, lambda status: status.draining)
    assert look(daemon, "/healthz").status == 200
    assert look(daemon, "/readyz")[:2] == (503, "the daemon is shutting down\n")
    sender.go_on()
    sender.finish()
    assert daemon.process.wait(60) == 0


def test_a_hundred_idle_connections_and_rubbish_leave_a_daemon_healthy(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(http_endpoint=ANY)
    where = http_address(daemon.ready.http_endpoint)
    with contextlib.ExitStack() as idle:
        for number in range(100):
            connection = idle.enter_context(socket.create_connection(where, timeout=60))
            if number % 3 == 0:
                connection.sendall(bytes(range(256)) * 4)
        assert look(daemon, "/healthz").status == 200
        assert look(daemon, "/readyz").status == 200


def test_with_the_daemon_its_port_is_gone(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(http_endpoint=ANY)
    where = http_address(daemon.ready.http_endpoint)
    assert look(daemon, "/healthz").status == 200
    with socket.create_connection(where, timeout=60):
        daemon.close()
    assert daemon.process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, timeout=60)
    start_daemon(http_endpoint=str(where)).close()
