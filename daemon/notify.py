"""Tells the service manager that started this daemon, mostly systemd, what it is doing.

The protocol is one datagram of `NAME=value` lines to the socket that NOTIFY_SOCKET names. Source: sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

from forebay.sockets import tell
from forebay.wire import MIB, Event

log = logging.getLogger("forebay.daemon")

_LONGEST_SEND_S: Final = 1.0
"""A step is told once, so it may wait a little for a manager that is busy; a sign of life comes again."""

_STEP_S: Final = 60.0
_SLOWEST_RESERVE_BYTES_PER_S: Final = 128 * MIB
"""What the manager is told that one step of the start takes at most; measured: 0.4 to 0.9 GiB/s."""

_CLOSE_S: Final = 75.0
"""Likewise of the end: a growth under way gets 60 s, the last answers 2."""

_US_PER_S: Final = 1_000_000


class ServiceManager:
    """Who watches over this process, if anybody does.

    A manager that cannot be told, or is gone, is warned of once and otherwise left alone: the daemon serves on.

    Args:
        environment: Where the manager says how it is told: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.

    Attributes:
        next_ping_at: Monotonic second at which the manager next wants a sign of life; None for never.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._name = environment.get("NOTIFY_SOCKET", "")
        self._address = _address(self._name)
        self._ping_s = _ping_s(environment) if self._address else 0.0
        self._has_warned = False
        self._is_deaf = False
        self.next_ping_at: float | None = 0.0 if self._ping_s else None

    def reserving(self, index: int, count: int, slot_bytes: int) -> None:
        """Tells that slots are reserved, before each one; the start may take longer by what this one takes."""
        may_take_s = _STEP_S + slot_bytes / _SLOWEST_RESERVE_BYTES_PER_S
        self._tell(STATUS=f"reserving slot {index + 1} of {count}", EXTEND_TIMEOUT_USEC=_microseconds(may_take_s))

    def adopting(self, slots: int) -> None:
        """Tells that what slots hold is taken over from the daemon before."""
        self._tell(STATUS=f"adopting what {slots} slots hold", EXTEND_TIMEOUT_USEC=_microseconds(_STEP_S))

    def serving(self, slots: int, note: str = "") -> None:
        """Tells that the daemon serves, at first or after `reloading`, and what came of that."""
        self._tell(READY=1, STATUS="; ".join(filter(None, (f"serving with {slots} slots", note))))

    def reloading(self, now: float) -> None:
        """Tells that settings are read again."""
        self._tell(RELOADING=1, MONOTONIC_USEC=_microseconds(now), STATUS="reading the settings again")

    def draining(self, drain_s: float) -> None:
        """Tells that the daemon stops once what is filling has finished."""
        until = time.strftime("%H:%M:%S UTC", time.gmtime(time.time() + drain_s))
        extension = _microseconds(drain_s + _CLOSE_S)
        self._tell(STOPPING=1, STATUS=f"draining until {until} at most", EXTEND_TIMEOUT_USEC=extension)

    def stopping(self) -> None:
        """Tells that the daemon closes what it has."""
        self._tell(STOPPING=1, STATUS="stopping", EXTEND_TIMEOUT_USEC=_microseconds(_CLOSE_S))

    def look(self, now: float) -> None:
        """Gives a sign of life, if that is due; to be called by the loop that has to be alive."""
        if self.next_ping_at is not None and now >= self.next_ping_at:
            self.next_ping_at = now + self._ping_s
            self._tell(0.0, WATCHDOG=1)

    def _tell(self, longest_s: float = _LONGEST_SEND_S, /, **fields: object) -> None:
        if not self._address:
            return
        lines = (f"{name}={str(value).replace(chr(10), ' ')}" for name, value in fields.items())
        try:
            # A socket for each: nothing stays open, and whatever is wrong with one is over with it.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # Once waited for in vain, it is not waited for again: many such waits would add up.
                sender.settimeout(0.0 if self._is_deaf else longest_s)
                sender.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except OSError as error:
            self._is_deaf = True
            self._warn(str(error))
        else:
            self._is_deaf = False

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            tell(log, logging.WARNING, Event.NOTIFY_FAILED, socket=self._name, reason=reason)
        self._has_warned = True


def _address(name: str) -> str:
    """Returns the address of a socket by its name in NOTIFY_SOCKET; empty where it is none that can be told."""
    if name.startswith("@"):
        return f"\0{name[1:]}"  # the abstract name space
    if name and not name.startswith("/"):
        reason = "neither a path nor an abstract name"
        tell(log, logging.WARNING, Event.NOTIFY_FAILED, socket=name, reason=reason)
        return ""
    return name


def _ping_s(environment: Mapping[str, str]) -> float:
    """Returns how often this process has to give a sign of life, in seconds; 0 for never."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not microseconds.isdecimal():
        return 0.0
    return int(microseconds) / _US_PER_S / 2


def _microseconds(seconds: float) -> int:
    return int(seconds * _US_PER_S)
