"""A daemon as a service manager starts it, and that manager's end of what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay import StagingClient
from forebay.wire import MIB

PATIENCE_S = 60.0
CLI = ("-m", "forebay", "serve")
Fields = dict[str, str]


class Manager:
    """A service manager's end: it names its socket, and hears what comes there."""

    def __init__(self, address: str) -> None:
        self.name = address.replace("\0", "@")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)

    def hear(self, timeout_s: float = PATIENCE_S) -> Fields:
        """Returns the next message."""
        self._socket.settimeout(timeout_s)
        words = self._socket.recv(1 << 16).decode()
        return dict(line.split("=", 1) for line in words.splitlines())

    def until(self, name: str) -> Fields:
        """Returns the next message with a field; passes over others."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if name in (fields := self.hear()):
                return fields
        pytest.fail(f"no {name} within {PATIENCE_S} s")

    def pending(self) -> list[Fields]:
        """Returns what has come already."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.hear(0.0))
        return found

    def close(self) -> None:
        self._socket.close()


class Daemon:
    """A daemon as a service manager starts it, with its log in a file; or on a terminal, its standard input."""

    def __init__(
        self, folder: Path, words: Sequence[str] = CLI, *, terminal: int | None = None, **more: Any
    ) -> None:
        self.folder, self.log_file, self.config = folder, folder / "log", folder / "forebay.toml"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        environment = inherited | {"FOREBAY_CONFIG": str(self.config)} | more.pop("environment", {})
        self.configure()
        with self.log_file.open("wb") as log:
            # A program, not preexec_fn: that makes Python fork, of which a process that has loaded jax warns.
            lead = [] if terminal is None else ["setsid", "--ctty"]
            arguments = [*lead, sys.executable, *words]
            self.process = subprocess.Popen(arguments, env=environment, stdin=terminal, stderr=log, **more)

    def configure(self, **settings: Any) -> None:
        endpoints = {
            f"{name}_endpoint": f"ipc://{self.folder}/{name}.sock" for name in ("control", "data", "trainer")
        }
        common = {"pool": str(self.folder / "pool"), "slots": 2, "slot_initial_bytes": MIB, "drain_s": 1.0}
        values = {name: str(value).lower() for name, value in (common | settings).items() if name != "pool"}
        texts = {name: f'"{value}"' for name, value in (endpoints | {"pool": common["pool"]}).items()}
        self.config.write_text("".join(f"{name} = {value}\n" for name, value in (values | texts).items()))

    def ask(self, question: Callable[[StagingClient], Any], **options: Any) -> Any:
        """Asks as a client, which may come before the daemon."""
        told = re.search(r" control=(tcp\S+)", self.log())
        endpoint = told[1] if told else f"ipc://{self.folder}/control.sock"

        async def main() -> Any:
            async with StagingClient(endpoint, timeout_s=PATIENCE_S, **options) as client:
                return await question(client)

        return asyncio.run(main())

    def log(self) -> str:
        return self.log_file.read_text()


def stop(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE_S) == 0, daemon.log()


def reload(daemon: Daemon, manager: Manager) -> str:
    """Has a daemon read its settings again; returns what its status says then."""
    before = time.monotonic_ns() // 1000
    daemon.process.send_signal(signal.SIGHUP)
    reloading = manager.hear()
    assert reloading["RELOADING"] == "1"
    assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    ready = manager.hear()
    assert ready["READY"] == "1"
    return ready["STATUS"]
