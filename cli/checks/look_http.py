"""Looks for whoever has the address of the HTTP server."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import Final

import msgspec

from forebay.daemon.http_address import HttpAddress, http_address
from forebay.wire.message import Peer

from ..words import named
from .case import Case
from .findings import Address, At
from .look_presence import why_not_bound

_SETTING: Final = "http_endpoint"
_ASK_S: Final = 2.0
"""Above the second that a daemon's server waits for its loop."""

_MAX_BYTES: Final = 8 << 20
_HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_UNKNOWN: Final = "a process that does not say that it is a Forebay daemon; ss -ltnp tells which one"


class _Said(msgspec.Struct):
    """What is read of /state.json."""

    peer: Peer
    pool: str


def look_at_http(case: Case) -> Address | None:
    """Looks at the address of the HTTP server; None where none is set.

    Raises:
        SettingError: It is none.
    """
    text = case.settings.http_endpoint
    if not text:
        return None
    address = http_address(text)
    if address.port == 0:
        return Address(_SETTING, text, At.NOBODY, is_certain=False)
    error = why_not_bound(address.host, address.port)
    if error is None:
        return Address(_SETTING, text, At.NOBODY)
    if error.errno != errno.EADDRINUSE:
        return Address(_SETTING, text, At.NOWHERE, error.strerror or str(error))
    return Address(_SETTING, text, *_holder(case, _ask(address)))


def _holder(case: Case, answer: bytes) -> tuple[At, str]:
    """Says who has the address; silent, it is likeliest the daemon that has the pool, and hangs."""
    if not answer and case.running.is_held:
        return At.DAEMON, ""
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        said = msgspec.json.decode(body if b" 200 " in head else b"", type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return At.OTHER, _UNKNOWN
    if case.running.is_held and said.pool == case.running.pool:
        return At.DAEMON, ""
    return At.OTHER, f"{named(said.peer)}, which has the pool {said.pool}"


def _ask(address: HttpAddress) -> bytes:
    """Returns what is answered within the time, head and body; nothing where that does not come whole."""
    told = bytearray()
    give_up_at = time.monotonic() + _ASK_S
    where = (_HERE.get(address.host, address.host), address.port)
    with contextlib.suppress(OSError), socket.create_connection(where, _ASK_S) as probe:
        probe.sendall(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while len(told) < _MAX_BYTES and (left_s := give_up_at - time.monotonic()) > 0:
            probe.settimeout(left_s)
            piece = probe.recv(1 << 16)
            if not piece:
                return bytes(told)
            told += piece
    return b""
