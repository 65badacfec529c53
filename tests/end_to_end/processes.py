"""Processes whose events can be awaited, and questions to a daemon about what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from forebay import LocalDaemon, StagingClient
from forebay.wire import Status

PARTY = Path(__file__).with_name("party.py")
EVENT_S = 60.0
"""Seconds to wait for an event; far more than any takes, so that a hang ends as a failure that says so."""

Condition = Callable[[Status], bool]


class Party:
    """A process whose events can be awaited.

    Args:
        arguments: What the script is called with.
        script: What it runs.
        wrapper: A command in front, such as unshare.
        kind: What of the process is signalled.
    """

    def __init__(
        self,
        *arguments: str,
        script: Path = PARTY,
        wrapper: Sequence[str] = (),
        kind: type[subprocess.Popen[str]] = subprocess.Popen,
    ) -> None:
        self.process = kind(
            [*wrapper, sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._arguments = arguments
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def until(self, event: str, **fields: Any) -> dict[str, Any]:
        """Waits for an event of this name with these fields; passes over others."""
        while True:
            try:
                found = self._events.get(timeout=EVENT_S)
            except queue.Empty:
                pytest.fail(f"{self._arguments} said no {event!r} {fields} within {EVENT_S} s")
            if found is None:
                self.process.wait()
                self._readers[1].join()
                pytest.fail(f"{self._arguments} ended before {event!r}: {''.join(self._errors[-15:])}")
            if found["event"] == event and fields.items() <= found.items():
                return found

    def go_on(self) -> None:
        """Lets a process that holds something go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal and waits for the end."""
        self.process.send_signal(number)
        self.process.wait(EVENT_S)

    def finish(self) -> None:
        """Waits for an orderly end."""
        self.until("done")
        assert self.process.wait(EVENT_S) == 0

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def words_of(role: str, endpoint: str, **options: Any) -> list[str]:
    """Returns the words that the script takes for options by name."""
    words = [role, endpoint]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return words


StartParty = Callable[..., Party]
StartDaemon = Callable[..., LocalDaemon]


def kill(daemon: LocalDaemon) -> None:
    """Kills a daemon as the kernel's out-of-memory killer would."""
    daemon.process.kill()
    daemon.process.wait()


class Reachable(Protocol):
    """A daemon that can be asked."""

    control_endpoint: str


def see(daemon: LocalDaemon | Reachable, condition: Condition) -> Status:
    """Asks for the status until a condition holds."""

    async def ask() -> Status:
        deadline = time.monotonic() + EVENT_S
        async with StagingClient(daemon.control_endpoint) as client:
            while time.monotonic() < deadline:
                status = await client.status()
                if condition(status):
                    return status
        pytest.fail(f"never seen; the last status was {status}")

    return asyncio.run(ask())


def slot_in(state: str, received: int = 0) -> Condition:
    def condition(status: Status) -> bool:
        return any(slot.state == state and slot.received_bytes >= received for slot in status.slots)

    return condition


def all_free(status: Status) -> bool:
    return all(slot.state == "FREE" for slot in status.slots)
