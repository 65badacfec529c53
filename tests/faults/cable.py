"""A network of its own for one process, on a cable that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ..end_to_end.processes import EVENT_S

_NOBODYS_ADDRESS = "02:00:00:00:00:01"
_LOOK_S = 0.02
_ESTABLISHED = "01"
_LOCAL, _REMOTE, _STATE = 1, 2, 3  # columns of /proc/net/tcp


class Cable:
    """A network namespace whose only way out is one pair of interfaces; the other end is in this namespace.

    The addresses are of the range for benchmarks, RFC 2544.

    Attributes:
        here: The address of this end.
        inside: A command in front of what is to run at the other end.
    """

    def __init__(self) -> None:
        number = os.getpid() % 16384
        self._name = f"forebay-{os.getpid()}"
        self._near, self._far = f"fb{number}a", f"fb{number}b"
        net = f"198.18.{number // 64}.{4 * (number % 64)}".rsplit(".", 1)
        self.here, self._there = (f"{net[0]}.{int(net[1]) + host}" for host in (1, 2))
        self.inside = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Self:
        if not shutil.which("ip"):
            pytest.skip("there is no ip command")
        made = subprocess.run(["ip", "netns", "add", self._name], check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"a network namespace cannot be made here: {made.stderr.strip()}")
        try:
            self._lay()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _lay(self) -> None:
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self._name)
        _ip("addr", "add", f"{self.here}/30", "dev", self._near)
        _ip("link", "set", self._near, "up")
        _ip("-n", self._name, "link", "set", "lo", "up")
        _ip("-n", self._name, "addr", "add", f"{self._there}/30", "dev", self._far)
        self.mend()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["ip", "link", "del", self._near], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self._name], check=False, capture_output=True)

    def cut(self) -> None:
        """Takes the far end's interface down."""
        _ip("-n", self._name, "link", "set", self._far, "down")

    def mend(self) -> None:
        """Takes it up."""
        _ip("-n", self._name, "link", "set", self._far, "up")

    def swallow(self) -> None:
        """Has all packets from the far end go to nobody; neither side is told anything."""
        _ip("-n", self._name, *_to_nobody(self.here, self._far))

    def deliver(self) -> None:
        """Has them arrive again."""
        _ip("-n", self._name, "neigh", "del", self.here, "dev", self._far)

    def swallow_answers(self) -> None:
        """Has all packets to the far end go to nobody."""
        _ip(*_to_nobody(self._there, self._near))

    def deliver_answers(self) -> None:
        """Has them arrive again."""
        _ip("neigh", "del", self._there, "dev", self._near)

    def ports(self, pid: int) -> set[int]:
        """Returns the ports of a process's own end of the connections that its network has."""
        ports = set()
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[_STATE] == _ESTABLISHED:
                ports.add(int(columns[_LOCAL].partition(":")[2], 16))
        return ports

    def until_given_up(self, pid: int) -> None:
        """Waits until a process has given up all of its connections."""
        deadline = time.monotonic() + 2 * EVENT_S
        while self.ports(pid):
            assert time.monotonic() < deadline, f"pid {pid} still has connections at {self.ports(pid)}"
            time.sleep(_LOOK_S)  # the kernel tells nobody


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _to_nobody(address: str, interface: str) -> tuple[str, ...]:
    return ("neigh", "replace", address, "lladdr", _NOBODYS_ADDRESS, "dev", interface, "nud", "permanent")
