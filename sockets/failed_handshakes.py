"""Handshakes that failed at a bound socket: told in the log with the peer, and counted by reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import zmq

from forebay.wire import Event, Faults, LastFault

from .limited_log import LimitedLog

log = logging.getLogger("forebay.access")

EVENTS: Final = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""What a monitor has to tell beside who came and who left. Of keys that may not enter the gate tells."""

NOT_AUTHORISED: Final = "not_authorised"
"""The operator does not know the key, says the `Gate`."""
_HUNG_UP: Final = "hung_up"
_WORDS: Final = {
    _HUNG_UP: "it does not use keys as this endpoint does, or only looked whether the port is open",
    "wrong_server_key": "it means another server, by the key that it was given",
    "no_keys": "it does not use keys as this endpoint does",
    "protocol": "it broke ZeroMQ's rules",
}
HANDSHAKE_FAILURES: Final = (NOT_AUTHORISED, *_WORDS)
"""Why a handshake may fail."""

_PROTOCOL_ERRORS: Final[dict[int, str]] = {
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "wrong_server_key",
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "no_keys",
}
_SHUT: Final = ""


class FailedHandshakes:
    """Hears all that a socket's monitor tells; for the thread that has the socket.

    ZeroMQ does not say whose handshake failed, or why a peer hung up. But a thread of its own tells of the failure
    and then, before anything else, that this connection has ended, whose descriptor it names. With several threads
    another's end may come between, so that the peer stays unknown.

    Args:
        bound: The socket.
        setting: Name of its address's setting, for the log.
        faults: Count them, by `counter_of`.
        peer_of: Names the peer behind a descriptor.
    """

    def __init__(
        self, bound: zmq.Socket[bytes], setting: str, faults: Faults, peer_of: Callable[[int], str]
    ) -> None:
        self._bound = bound
        self._setting = setting
        self._faults = faults
        self._peer_of = peer_of
        self._log = LimitedLog(log)
        self._is_in_order = bound.context.get(zmq.IO_THREADS) == 1
        self._peers: dict[int, str] = {}
        self._failed: str | None = None

    def hear(self, event: int, value: int) -> bool:
        """Hears an event; returns whether it was about a handshake that failed."""
        if event & EVENTS:
            self._fail(_reason(event, value))
            return True
        if self._is_in_order and event == zmq.EVENT_ACCEPTED:
            self._peers[value] = self._peer_of(value)
        elif self._is_in_order and event == zmq.EVENT_DISCONNECTED:
            peer, failed = self._peers.pop(value, "unknown"), self._failed
            self._failed = None
            if failed is not None and peer != _SHUT:
                self._tell(failed, peer)
        return False

    def shut(self, descriptor: int) -> None:
        """Hears that this side shuts a connection: that its handshake fails is no peer's doing."""
        if descriptor in self._peers:
            self._peers[descriptor] = _SHUT

    def _fail(self, reason: str) -> None:
        if self._is_in_order:
            self._failed = reason
        else:
            self._tell(reason, "unknown")

    def _tell(self, reason: str, peer: str) -> None:
        self._faults.count(counter_of(reason), LastFault(time.monotonic(), peer))
        self._log.tell(
            # Where there are no keys, it is mostly somebody who looks whether the port is open.
            logging.WARNING if self._bound.curve_server else logging.INFO,
            Event.HANDSHAKE_FAILED,
            endpoint=self._setting,
            peer=peer,
            reason=f"{reason}: {_WORDS[reason]}",
        )


def counter_of(reason: str) -> str:
    """Returns the name under which `Faults` counts a reason of `HANDSHAKE_FAILURES`."""
    return f"handshake_failed_{reason}"


def _reason(event: int, value: int) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return _PROTOCOL_ERRORS.get(value, "protocol")
    return _HUNG_UP
