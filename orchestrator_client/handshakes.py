"""Why a server does not let this client in, as far as ZeroMQ tells."""

from __future__ import annotations

from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from forebay.sockets import ClientKeys

from .server_kind import ServerKind

_EVENTS: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
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
    server that has as many connections as it may have, or ends, is FAILED_NO_DETAIL too, with keys and without. A
    socket of a kind that this one does not talk to, which another endpoint of the server is, is that too, or a
    connection that ends without a word about its handshake.

    Args:
        socket: Not connected yet.
        endpoint: Where it will connect to; keys are used at tcp ones alone.
        kind: Of the server.
        keys: That this client has, if any.
        is_data: Whether it is the server's data endpoint.
        events: To watch.

    Attributes:
        failures: Handshakes that failed since the last one that did not.
        has_succeeded: Whether the last one did not.
        was_refused: Whether the server read this client's key and does not know it; it is not asked again.
        monitor: Readable when there is something for `take`.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        endpoint: str,
        kind: ServerKind,
        *,
        keys: ClientKeys | None,
        is_data: bool = False,
        events: int = _EVENTS,
    ) -> None:
        self.failures = 0
        self.has_succeeded = False
        self.was_refused = False
        self._kind = kind
        self._is_data = is_data
        self._socket = socket
        self.monitor = socket.get_monitor_socket(events)
        self._asks_keys = endpoint.startswith("tcp:")
        self._keys = keys if self._asks_keys else None
        self._failure: int | None = None
        self._is_shaking = False

    def fileno(self) -> int:
        """Returns the descriptor that tells, once, that something has happened."""
        return int(self.monitor.FD)

    def take(self) -> None:
        """Takes what has happened since the last time; waits for nothing."""
        while self.monitor.poll(0):
            self._hear(int(parse_monitor_message(self.monitor.recv_multipart())["event"]))

    def _hear(self, event: int) -> None:
        was_shaking, self._is_shaking = self._is_shaking, event == zmq.EVENT_CONNECTED
        match event:
            case zmq.EVENT_CONNECTED:
                pass
            case zmq.EVENT_DISCONNECTED:
                if was_shaking:
                    self._failed(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failure, self.failures, self.has_succeeded = None, 0, True
            case _:
                self._failed(event)
        self.was_refused = self._failure == zmq.EVENT_HANDSHAKE_FAILED_AUTH

    def _failed(self, event: int) -> None:
        self.failures += 1
        self.has_succeeded = False
        if self._failure != zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._failure = event

    @property
    def is_certain(self) -> bool:
        """Whether it is keys that the last handshake failed for, and nothing else."""
        if self._failure == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return self._keys is not None
        return self._failure == zmq.EVENT_HANDSHAKE_FAILED_AUTH

    @property
    def remedy(self) -> str:
        """What to check where the last handshake failed, of the keys and of the address; empty where none did."""
        match self._failure:
            case None:
                return ""
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return "have the public key of client_key_file added to the server's authorised_file"
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL if self._keys is not None:
                return "the server has no keys: give it some (key_file, authorised_file), or use none here"
            case _:
                return f"the server hung up in the handshake: {self._what_may_be_wrong}"

    @property
    def _what_may_be_wrong(self) -> str:
        if self._keys is not None:
            return f"it has no keys, or not {self._server_key(self._keys)}, or {self._wrong_address}"
        if self._asks_keys and not self._is_data:
            files = " and ".join(dict.fromkeys(("client_key_file", "server_key_file", self._kind.key_setting)))
            return f"if it has keys, set {files}; or {self._wrong_address}"
        return self._wrong_address

    def _server_key(self, keys: ClientKeys) -> str:
        used, own = keys.server_setting, self._kind.key_setting
        words = f"the one in {used} ({_variable(used)})"
        return words if used == own else f"{words}, which stands for {own} ({_variable(own)}) as well"

    @property
    def _wrong_address(self) -> str:
        if self._is_data:
            return "this is not its data endpoint"
        own = self._kind.setting.replace("_", " ")
        return f"this is not its {own} (a {self._kind.name}'s data endpoint?)"

    def close(self) -> None:
        """Ends it; before the socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close()


def _variable(setting: str) -> str:
    return f"FOREBAY_{setting.upper()}"
