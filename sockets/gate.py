"""Who may enter at a tcp endpoint of a server with keys: a file of clients, asked in each handshake."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq

from forebay.wire import (
    STRANGER,
    Client,
    Event,
    Faults,
    LastFault,
    LocalError,
    SettingError,
    check_key_settings,
    printable,
    read_clients,
    words_of,
)

from .failed_handshakes import NOT_AUTHORISED, counter_of
from .keys import KeyPair, check_mode, load_key_pair
from .limited_log import LimitedLog
from .telling import tell

if TYPE_CHECKING:
    from zmq.auth.thread import AuthenticationThread

log = logging.getLogger("forebay.access")

_DOMAIN: Final = "forebay"
_CLOSE_S: Final = 10.0
_ZAP_ADDRESS: Final = 3
"""Place of the peer's address in a request. Source: ZeroMQ's RFC 27."""
CURVE_FRAME_BYTES: Final = 64
"""More than CURVE adds to a frame: 33 bytes."""

_Mark = tuple[int, int, int, int] | None


class AuthorisedFile:
    """The clients that the operator knows; looked at anew whenever the file has changed. Safe from any thread.

    A file that has become wrong changes nothing, and is told in the log: half of a file, while somebody saves it,
    must not throw everybody out. An empty one does.

    Args:
        path: Of the file, as the setting says.

    Raises:
        SettingError: It cannot be used.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._mark = self._look()
        self._clients = self._read()
        self._trouble = ""

    @property
    def count(self) -> int:
        """How many clients it had when it was looked at last."""
        with self._lock:
            return len(self._clients)

    def client_of(self, key: str) -> Client:
        """Returns whose key it is now; the stranger who may do nothing if it is nobody's."""
        with self._lock:
            mark = self._look()
            if mark != self._mark:
                self._read_again(mark)
            return self._clients.get(key, STRANGER)

    def _read_again(self, mark: _Mark) -> None:
        try:
            self._clients = self._read()
        except SettingError as error:
            # What kept it from being read, the want of a descriptor say, may end without a change of the file.
            if mark is None or not isinstance(error.__cause__, OSError):
                self._mark = mark
            if str(error) != self._trouble or self._mark == mark:
                fields: dict[str, object] = {"kept": len(self._clients), "reason": str(error)}
                tell(log, logging.ERROR, Event.AUTHORISED_FILE_WRONG, **fields)
            self._trouble = str(error)
        else:
            self._mark, self._trouble = mark, ""
            names = sorted(client.name for client in self._clients.values())
            tell(log, logging.WARNING, Event.AUTHORISED_FILE_CHANGED, clients=names)

    def _look(self) -> _Mark:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size

    def _read(self) -> dict[str, Client]:
        forbidden = stat.S_IWGRP | stat.S_IWOTH
        check_mode(self._path, "authorised_file", forbidden=forbidden, danger="write", remedy="chmod 644")
        try:
            text = self._path.read_text()
        except (OSError, ValueError) as error:
            raise SettingError(f"authorised_file {self._path} cannot be read: {error}") from error
        return read_clients(text, str(self._path))


@dataclasses.dataclass(frozen=True, slots=True)
class ServerKeys:
    """What a server with keys has."""

    own: KeyPair
    authorised: AuthorisedFile

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Has a socket, before it is bound, let nobody in that the context's `Gate` does not know."""
        socket.curve_server = True
        socket.curve_secretkey = self.own.secret
        socket.zap_domain = _DOMAIN.encode()
        # Without it, ZeroMQ would let everybody in while no gate is there.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def load_server_keys(key_file: str, authorised_file: str) -> ServerKeys | None:
    """Reads the keys of a server; None where it has none.

    Args:
        key_file: Its secret key file, or empty.
        authorised_file: Who may enter, or empty.

    Raises:
        SettingError: Only one of the two is given, or one of them cannot be used.
    """
    check_key_settings(key_file=key_file, authorised_file=authorised_file)
    if not key_file:
        return None
    return ServerKeys(load_key_pair(key_file, "key_file"), AuthorisedFile(authorised_file))


class Gate:
    """Answers, on a thread of its own, for all sockets of one context that `ServerKeys.guard` was called for.

    Args:
        context: The context; it can end only after `close`.
        keys: The server's.
        faults: Count those who are turned away.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys, faults: Faults) -> None:
        # Here: it brings asyncio along, which a daemon without keys does not need.
        from zmq.auth.thread import ThreadAuthenticator

        class Authenticator(ThreadAuthenticator):
            """Notes from which host comes who asks; one asks at a time."""

            peer = ""

            async def handle_zap_message(self, msg: list[bytes]) -> None:
                self.peer = printable(b"".join(msg[_ZAP_ADDRESS : _ZAP_ADDRESS + 1]).decode(errors="replace"))
                await super().handle_zap_message(msg)

        self._authorised = keys.authorised
        self._faults = faults
        self._log = LimitedLog(log)
        self._authenticator = Authenticator(context, log=logging.getLogger("forebay.zap"))
        self._authenticator.configure_curve_callback(_DOMAIN, self)
        try:
            self._authenticator.start()
        except BaseException:
            self.close()
            raise

    def callback(self, domain: str, key: bytes) -> bool:  # noqa: ARG002 - pyzmq's signature
        """Tells pyzmq whether a key may enter."""
        text = key.decode()  # Z85
        if self._may_enter(text):
            return True
        by = f"{self._authenticator.peer} with key {text}"
        self._faults.count(counter_of(NOT_AUTHORISED), LastFault(time.monotonic(), by))
        return False

    def _may_enter(self, key: str) -> bool:
        try:
            client = self._authorised.client_of(key)
        except Exception as error:  # noqa: BLE001 - it would end pyzmq's thread, and nobody would enter any more
            self._log.tell(logging.ERROR, Event.GATE_FAILED, key=key, reason=words_of(error))
            return False
        if not client.rights:
            peer = self._authenticator.peer
            self._log.tell(logging.WARNING, Event.STRANGER_TURNED_AWAY, key=key, peer=peer)
        return bool(client.rights)

    def close(self) -> None:
        """Ends it; a second call does nothing. Nobody enters any more.

        Raises:
            LocalError: Its thread is stuck.
        """
        self._end_thread()
        # What is left to it is to close the socket that it answers at.
        self._authenticator.stop()

    def _end_thread(self) -> None:
        """What pyzmq's own `stop` does, which waits for ever where the thread has ended by itself."""
        authenticator = self._authenticator
        # Both are None before it was started and after it was closed; pyzmq does not declare that.
        pipe: zmq.Socket[bytes] | None = authenticator.pipe
        thread: AuthenticationThread | None = authenticator.thread
        if thread is not None and thread.ident is None:
            thread.pipe.close()  # it was never started
        elif thread is not None and pipe is not None:
            with contextlib.suppress(zmq.Again):  # nobody is at its other end any more
                pipe.send(b"TERMINATE", zmq.NOBLOCK)
            thread.join(_CLOSE_S)
            if thread.is_alive():
                raise LocalError(f"waited {_CLOSE_S:g} s for the thread of a gate to end")
        if pipe is not None:
            pipe.close()
        authenticator.pipe = None  # type: ignore[assignment]
        authenticator.thread = None  # type: ignore[assignment]
