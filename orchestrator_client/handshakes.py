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


class Handshakes:
    """Watches the handshakes of one socket.

    What libzmq 4.3.5 was seen to tell a client: an unknown key is FAILED_AUTH, and there is no second try. A wrong
    server key is FAILED_NO_DETAIL, again and again: a server that cannot read the first word hangs up. Keys on one
    side only are FAILED_NO_DETAIL or FAILED_PROTOCOL, a mechanism mismatch; it depends on who hangs up first.

    Args:
        socket: Not connected yet.
        has_keys: Whether it uses keys at the endpoint.

    Attributes:
        was_refused: Whether the server read this client's key and does not know it; it is not asked again.
    """

    def __init__(self, socket: zmq.Socket[bytes], *, has_keys: bool) -> None:
        self.was_refused = False
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_EVENTS)
        self._has_keys = has_keys
        self._failure: int | None = None

    def fileno(self) -> int:
        """Returns the descriptor that tells, once, that something has happened."""
        return int(self._monitor.FD)

    def take(self) -> None:
        """Takes what has happened since the last time; waits for nothing."""
        while self._monitor.poll(0):
            event = int(parse_monitor_message(self._monitor.recv_multipart())["event"])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failure = None
            elif self._failure != zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._failure = event
            self.was_refused = self._failure == zmq.EVENT_HANDSHAKE_FAILED_AUTH

    @property
    def remedy(self) -> str:
        """What to check where the last handshake failed; empty where none did."""
        match self._failure:
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
        self._monitor.close()
