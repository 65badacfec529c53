"""A small HTTP server beside the loop: few connections, few bytes, little time for each."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from typing import Final

from forebay.wire import HeldError, HostError

from .http_address import HttpAddress
from .http_answers import Pages, answer_to

_MAX_CONNECTIONS: Final = 16
_BACKLOG: Final = 128
"""Who finds this full tries again after a second; far more than connections, as those who come push others out."""

_REQUEST_S: Final = 5.0
_ROOM_S: Final = 2.0
_RETRY_S: Final = 0.1
_CLOSE_S: Final = 10.0
_HEAD_BYTES: Final = 16 << 10
_READ_BYTES: Final = 4 << 10
_ENDS: Final = (b"\r\n\r\n", b"\n\n")


class HttpServer:
    """Answers one request a connection, each on a thread of its own.

    There are never more than a few connections: one too many has the oldest hung up on, so that those who connect
    and say nothing keep nobody out.

    Args:
        address: Where it listens; with port 0 at any port.
        pages: What there is.

    Attributes:
        address: Where it listens.

    Raises:
        HeldError: Something else listens there.
        HostError: The address cannot be had.
    """

    def __init__(self, address: HttpAddress, pages: Pages) -> None:
        self._pages = pages
        self._listener = _listen(address)
        self.address = HttpAddress(address.host, self._listener.getsockname()[1])
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._is_closing = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="forebay-http", daemon=True)
        self._acceptor.start()

    def __repr__(self) -> str:
        return f"HttpServer({str(self.address)!r})"

    def _accept(self) -> None:
        while not self._is_closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was closed, or there are no descriptors at the moment
                self._is_closing.wait(_RETRY_S)
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        if not self._room.acquire(blocking=False):
            self._hang_up_on_oldest()
            if not self._room.acquire(timeout=_ROOM_S):
                connection.close()
                return
        with self._lock:
            self._open[connection] = None
        try:
            threading.Thread(
                target=self._serve, args=(connection,), name="forebay-http-request", daemon=True
            ).start()
        except RuntimeError:  # the host has no thread left
            self._forget(connection)

    def _hang_up_on_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._open), None)
            if oldest is not None:
                del self._open[oldest]
                _shut(oldest)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
            connection.close()
        self._room.release()

    def _serve(self, connection: socket.socket) -> None:
        try:
            head = _read_head(connection)
            if head:
                connection.settimeout(_REQUEST_S)
                connection.sendall(answer_to(head, self._pages))
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it hung up, or took too long
        finally:
            self._forget(connection)

    def close(self) -> None:
        """Stops listening and hangs up on all; a second call does nothing."""
        self._is_closing.set()
        _shut(self._listener)  # wakes the thread that accepts
        self._acceptor.join(_CLOSE_S)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _shut(connection)


def _listen(address: HttpAddress) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise HostError(f"http_endpoint {address} cannot be had: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise HeldError(
                f"http_endpoint {address}: something else listens there",
                remedy="stop it first, or set http_endpoint to another address",
            ) from error
        raise HostError(f"http_endpoint {address} cannot be bound: {os.strerror(error.errno or 0)}") from error
    return listener


def _read_head(connection: socket.socket) -> bytes:
    """Returns a request's first line and headers; nothing where they do not come whole, or are too long."""
    deadline = time.monotonic() + _REQUEST_S
    head = b""
    while not any(end in head for end in _ENDS):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or len(head) > _HEAD_BYTES:
            return b""
        connection.settimeout(left_s)
        more = connection.recv(_READ_BYTES)
        if not more:
            return b""
        head += more
    return head


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
