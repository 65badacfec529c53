"""What a service manager hears of a real daemon, on a real socket."""

from __future__ import annotations

import contextlib
import logging
import os
import pty
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import local_daemon
from forebay.daemon import notify
from forebay.daemon.notify import ServiceManager
from forebay.wire import MIB, Status

from .managed import CLI, PATIENCE_S, Daemon, Manager, reload, stop

HELD_DAEMON = Path(__file__).with_name("held_daemon.py")
PING_S = 0.05


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, shm_dir: Path) -> Iterator[Manager]:
    is_path = request.param == "path"
    manager = Manager(
        str(shm_dir / "notify") if is_path else f"\0forebay-test-{os.getpid()}-{time.monotonic_ns()}"
    )
    yield manager
    manager.close()


@pytest.fixture
def path_manager(shm_dir: Path) -> Iterator[Manager]:
    manager = Manager(str(shm_dir / "notify"))
    yield manager
    manager.close()


StartDaemon = Callable[..., Daemon]


@pytest.fixture
def start(shm_dir: Path) -> Iterator[StartDaemon]:
    daemons: list[Daemon] = []

    def start_one(manager: Manager | None = None, words: Sequence[str] = CLI, **more: Any) -> Daemon:
        notify = {"NOTIFY_SOCKET": manager.name} if manager else {}
        more["environment"] = notify | more.get("environment", {})
        daemons.append(Daemon(shm_dir, words, **more))
        return daemons[-1]

    yield start_one
    for daemon in daemons:
        daemon.process.kill()
        daemon.process.wait()


# --- the start and the end ---


def test_ready_comes_once_slots_are_reserved_and_sockets_bound_and_stopping_at_the_end(
    start: StartDaemon, manager: Manager
) -> None:
    daemon = start(manager)
    starting = [manager.hear() for _ in range(3)]
    assert [fields["STATUS"] for fields in starting] == [
        "reserving slot 1 of 2",
        "reserving slot 2 of 2",
        "adopting what 0 slots hold",
    ]
    assert all(int(fields["EXTEND_TIMEOUT_USEC"]) >= 60_000_000 for fields in starting)
    assert manager.hear() == {"READY": "1", "STATUS": "serving with 2 slots"}
    status: Status = daemon.ask(lambda client: client.status())
    assert len(status.slots) == 2
    assert manager.pending() == [], "nobody asked for signs of life"
    stop(daemon)
    draining, stopping = manager.pending()
    assert draining["STOPPING"] == stopping["STOPPING"] == "1"
    assert draining["STATUS"].startswith("draining until ")
    assert int(draining["EXTEND_TIMEOUT_USEC"]) == 76_000_000
    assert stopping["STATUS"] == "stopping"


def test_a_socket_is_there_at_the_very_moment_of_ready(start: StartDaemon, path_manager: Manager) -> None:
    daemon = start(path_manager)
    path_manager.until("READY")
    for name in ("control", "data", "trainer"):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(daemon.folder / f"{name}.sock"))
    stop(daemon)


def test_what_is_adopted_is_told(start: StartDaemon, path_manager: Manager) -> None:
    daemon = start(path_manager)
    path_manager.until("READY")
    daemon.ask(lambda client: client.stage({"x": np.ones(9)}, key="k", queue="q"))
    daemon.process.kill()
    daemon.process.wait()
    daemon = start(path_manager)
    assert "adopting what 1 slots hold" in [path_manager.hear()["STATUS"] for _ in range(3)]
    path_manager.until("READY")
    stop(daemon)


def test_a_manager_that_is_gone_or_never_was_ends_no_daemon(start: StartDaemon, path_manager: Manager) -> None:
    daemon = start(path_manager, environment={"WATCHDOG_USEC": "1000"})
    path_manager.until("READY")
    path_manager.close()
    Path(path_manager.name).unlink()
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon.ask(lambda client: client.status())
    stop(daemon)
    assert daemon.log().count("notify_failed") == 1
    daemon = start(environment={"NOTIFY_SOCKET": "vsock:2:1"})
    daemon.ask(lambda client: client.status())
    stop(daemon)
    assert "notify_failed socket=vsock:2:1" in daemon.log()


def test_a_private_daemon_tells_nothing_to_the_manager_of_its_parent(
    path_manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", path_manager.name)
    with local_daemon(slots=1, slot_initial_bytes=MIB):
        pass
    assert path_manager.pending() == []


# --- signs of life ---


def test_an_idle_daemon_gives_signs_of_life(start: StartDaemon, path_manager: Manager) -> None:
    daemon = start(path_manager, environment={"WATCHDOG_USEC": str(int(2e6 * PING_S))})
    path_manager.until("READY")
    for _ in range(10):
        path_manager.until("WATCHDOG")
    stop(daemon)


def test_a_busy_loop_gives_no_more_signs_of_life_than_every_half_of_what_the_manager_waits_for(
    path_manager: Manager,
) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": path_manager.name, "WATCHDOG_USEC": "20000000"})
    for now in (1000.0, 1000.1, 1009.9, 1010.0, 1010.1, 1025.0, 1034.9):
        told.look(now)
    assert path_manager.pending() == [{"WATCHDOG": "1"}] * 3
    assert told.next_ping_at == 1035.0


def test_a_sign_of_life_does_not_wait_for_a_manager_that_reads_nothing(
    path_manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": path_manager.name, "WATCHDOG_USEC": "20000000"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others, contextlib.suppress(BlockingIOError):
        others.setblocking(False)
        while True:
            others.sendto(b"STATUS=others talk too", path_manager.name)
    told.look(1000.0)
    assert f"notify_failed socket={path_manager.name}" in caplog.text
    assert "timed out" not in caplog.text
    assert {"WATCHDOG": "1"} not in path_manager.pending()
    told.look(told.next_ping_at or 0.0)
    assert path_manager.pending() == [{"WATCHDOG": "1"}]


@pytest.mark.parametrize("variables", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "never"}, {"WATCHDOG_USEC": "0"}])
def test_signs_of_life_that_another_process_owes_are_not_given(
    variables: dict[str, str],
) -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "1000"}
    assert ServiceManager(environment).next_ping_at is not None
    assert ServiceManager(environment | {"WATCHDOG_PID": str(os.getpid())}).next_ping_at is not None
    assert ServiceManager(environment | variables).next_ping_at is None


def test_without_a_watchdog_nothing_wakes_the_loop() -> None:
    assert ServiceManager({}).next_ping_at is None
    assert ServiceManager({"WATCHDOG_USEC": "1000"}).next_ping_at is None, "nobody would hear it"
    assert ServiceManager({"NOTIFY_SOCKET": "/run/notify"}).next_ping_at is None


@pytest.fixture
def held(start: StartDaemon, path_manager: Manager) -> Iterator[tuple[Daemon, int]]:
    """A daemon whose loop hangs, and the pipe whose next byte ends that."""
    held_end, held_fd = os.pipe()
    go_fd, go_end = os.pipe()
    words = (str(HELD_DAEMON), str(held_fd), str(go_fd))
    environment = {"WATCHDOG_USEC": str(int(2e6 * PING_S)), "PYTHONFAULTHANDLER": "1"}
    daemon = start(path_manager, words, pass_fds=(held_fd, go_fd), environment=environment)
    path_manager.until("READY")
    path_manager.until("WATCHDOG")
    daemon.process.send_signal(signal.SIGHUP)
    assert select.select([held_end], [], [], PATIENCE_S)[0], "the loop was never held"
    path_manager.pending()
    yield daemon, go_end
    for fd in (held_end, held_fd, go_fd, go_end):
        os.close(fd)


def test_a_loop_that_hangs_gives_no_sign_of_life(held: tuple[Daemon, int], path_manager: Manager) -> None:
    daemon, go_end = held
    with pytest.raises(TimeoutError):
        path_manager.hear(timeout_s=20 * PING_S)
    os.write(go_end, b".")
    path_manager.until("READY")
    path_manager.until("WATCHDOG")
    stop(daemon)


def test_a_loop_that_hangs_is_found_in_the_log_when_the_watchdog_ends_it(held: tuple[Daemon, int]) -> None:
    daemon, _ = held
    daemon.process.send_signal(signal.SIGABRT)
    assert daemon.process.wait(PATIENCE_S) == -signal.SIGABRT
    assert re.search(r'held_daemon.py", line \d+ in hold', daemon.log())


# --- SIGHUP ---


def test_sighup_applies_a_changed_file_and_refuses_a_wrong_one(start: StartDaemon, path_manager: Manager) -> None:
    daemon = start(path_manager)
    path_manager.until("READY")
    daemon.ask(lambda client: client.stage({"x": np.ones(9)}, key="k", queue="q"))
    daemon.configure(slots=0, max_age_s=0.001)
    words = "serving with 2 slots; settings not read again: setting slots; got 0; limit 1 to 1024"
    assert reload(daemon, path_manager) == words
    status: Status = daemon.ask(lambda client: client.status())
    assert status.queues[0].ready == ("k",)
    errors = [line for line in daemon.log().splitlines() if " ERROR " in line]
    assert [line.partition("reason=")[2] for line in errors] == ["setting slots; got 0; limit 1 to 1024"]
    daemon.configure(slots=3, max_age_s=0.001, keep_pool=True)
    words = "serving with 2 slots; settings read again, 2 changed; a restart is needed for slots"
    assert reload(daemon, path_manager) == words
    status = daemon.ask(lambda client: client.status())
    assert "k" not in str(status.queues), "too old by the new setting"
    stop(daemon)
    log = daemon.log()
    for words in (
        "setting=max_age_s before=0.000000 after=0.001000",
        "restart_needed settings=slots",
        "pool_kept=True",
    ):
        assert words in log
    assert (daemon.folder / "pool").exists()


def test_a_pipe_in_the_place_of_the_file_holds_nobody_up(start: StartDaemon, path_manager: Manager) -> None:
    daemon = start(path_manager)
    path_manager.until("READY")
    daemon.config.unlink()
    os.mkfifo(daemon.config)
    assert "settings not read again: " in (words := reload(daemon, path_manager))
    assert "no regular file" in words
    assert daemon.ask(lambda client: client.status())
    stop(daemon)


def test_a_flag_wins_over_the_file_also_when_that_is_read_again(start: StartDaemon, path_manager: Manager) -> None:
    daemon = start(path_manager, (*CLI, "--drain-s", "2.5"))
    path_manager.until("READY")
    daemon.configure(drain_s=7.0)
    assert reload(daemon, path_manager) == "serving with 2 slots; settings read again, 0 changed"
    stop(daemon)


def test_without_a_manager_sighup_reads_the_settings_again_too(start: StartDaemon) -> None:
    daemon = start()
    daemon.ask(lambda client: client.status())
    daemon.configure(keep_pool=True)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.ask(lambda client: client.status())
    stop(daemon)
    assert "setting_changed setting=keep_pool before=False after=True" in daemon.log()


def test_a_daemon_whose_terminal_is_closed_stops_in_order(start: StartDaemon, path_manager: Manager) -> None:
    ours, theirs = pty.openpty()
    daemon = start(path_manager, terminal=theirs)
    os.close(theirs)
    path_manager.until("READY")
    os.close(ours)
    assert daemon.process.wait(PATIENCE_S) == 0, daemon.log()
    assert "stopped pool_kept=False" in daemon.log()


# --- the socket's own faults ---


def test_a_manager_that_reads_nothing_holds_nobody_up_for_long(
    shm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = Manager(str(shm_dir / "deaf"))
    told = ServiceManager({"NOTIFY_SOCKET": deaf.name})
    caplog.set_level(logging.WARNING, "forebay")
    while not caplog.records:
        told.serving(1)
    assert "notify_failed" in caplog.text
    deaf.close()


def test_a_manager_that_was_waited_for_in_vain_is_told_without_waiting_until_it_reads_again(
    shm_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = Manager(str(shm_dir / "deaf"))
    told = ServiceManager({"NOTIFY_SOCKET": deaf.name})
    caplog.set_level(logging.WARNING, "forebay")
    while not caplog.records:
        told.serving(1)
    monkeypatch.setattr(notify, "_LONGEST_SEND_S", 24 * 3600.0)
    told.serving(2)  # one that waits is ended by the watchdog of these tests
    assert deaf.pending()
    told.serving(3)
    assert deaf.pending() == [{"READY": "1", "STATUS": "serving with 3 slots"}]
    deaf.close()


def test_no_text_can_add_a_line_of_its_own(path_manager: Manager) -> None:
    ServiceManager({"NOTIFY_SOCKET": path_manager.name}).serving(1, "a\nSTOPPING=1")
    assert path_manager.hear() == {"READY": "1", "STATUS": "serving with 1 slots; a STOPPING=1"}
