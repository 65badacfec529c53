"""Why a server does not let this client in, as far as ZeroMQ tells."""

from __future__ import annotations

from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
REFUSALS: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""One for each connection at most, so that it does no harm if nobody takes them for long."""


class Handshakes:
    """Watches the handshakes of one socket.

    What libzmq 4.3.5 was seen to tell a client: an unknown key is FAILED_AUTH, and there is no second try. A wrong
    server key is FAILED_NO_DETAIL, again and again: a server that cannot read the first word hangs up. Keys on one
    side only are FAILED_NO_DETAIL or FAILED_PROTOCOL, a mechanism mismatch; it depends on who hangs up first. A
    server that has as many connections as it may have, or ends, is FAILED_NO_DETAIL too, with keys and without.

    Args:
        socket: Not connected yet.
        endpoint: Where it will connect to; keys are used at tcp ones alone.
        has_keys: Whether this client has keys.
        events: To watch.

    Attributes:
        was_refused: Whether the server read this client's key and does not know it; it is not asked again.
        monitor: Readable when there is something for `take`.
    """

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str, *, has_keys: bool, events: int = _EVENTS) -> None:
        self.was_refused = False
        self._socket = socket
        self.monitor = socket.get_monitor_socket(events)
        self._asks_keys = endpoint.startswith("tcp:")
        self._has_keys = has_keys and self._asks_keys
        self._failure: int | None = None

    def fileno(self) -> int:
        """Returns the descriptor that tells, once, that something has happened."""
        return int(self.monitor.FD)

    def take(self) -> None:
        """Takes what has happened since the last time; waits for nothing."""
        while self.monitor.poll(0):
            event = int(parse_monitor_message(self.monitor.recv_multipart())["event"])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failure = None
            elif self._failure != zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._failure = event
            self.was_refused = self._failure == zmq.EVENT_HANDSHAKE_FAILED_AUTH

    @property
    def is_certain(self) -> bool:
        """Whether it is keys that the last handshake failed for, and nothing else."""
        if self._failure == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return self._has_keys
        return self._failure == zmq.EVENT_HANDSHAKE_FAILED_AUTH

    @property
    def remedy(self) -> str:
        """What to check of the keys where the last handshake failed; empty where none did, and at ipc."""
        match self._failure if self._asks_keys else None:
            case None:
                return ""
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return "have the public key of client_key_file added to the server's authorised_file"
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL if self._has_keys:
                return "the server has no keys: give it some (key_file, authorised_file), or use none here"
            case _ if self._has_keys:
                return "the server hung up in the handshake: it has no keys, or not the one in server_key_file"
            case _:
                return (
                    "the server hung up in the handshake: if it has keys, set client_key_file and server_key_file"
                )

    def close(self) -> None:
        """Ends it; before the socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close()
