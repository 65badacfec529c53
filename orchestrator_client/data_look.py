"""Why nothing arrives at a data endpoint, found out by dialling it once more."""

from __future__ import annotations

import contextlib
import time
from typing import Final

import zmq

from forebay.sockets import LOOK_S, ClientKeys, Who, why_silent

from .data_endpoint import Target
from .handshakes import Handshakes
from .server_kind import ServerKind
from .standstill import Why

_SURE_FAILURES: Final = 2
"""Handshakes that have to fail: whoever is one too many is hung up on once, and then gets no answer."""


def why_nothing_arrives(target: Target, kind: ServerKind, keys: ClientKeys | None) -> Why:
    """Looks at a data endpoint; takes twice `LOOK_S` at most.

    Args:
        target: The data endpoint.
        kind: Of the server.
        keys: Used where it is encrypted.
    """
    address = (
        f"set {kind.data_setting} (FOREBAY_{kind.data_setting.upper()}) of the {kind.name} to an address that this"
        " client reaches"
    )
    shaken, failures, remedy = _shake_hands(target, kind, keys if target.is_encrypted else None)
    if shaken:
        return Why("", f"see what the {kind.name} does with: {kind.look}; or {address}")
    if failures >= _SURE_FAILURES:
        return Why("its handshakes fail", remedy, is_certain=True)
    found = why_silent(target.endpoint)
    if not found.words and failures:
        return Why("its handshake failed", remedy)
    remedy = "; or ".join(filter(None, (found.advice, address)))
    if not found.words:
        return Why("whoever listens there takes the connection, and says nothing", remedy, may_be_slow=True)
    return Why(found.words, remedy, is_certain=found.who is Who.NOBODY)


def _shake_hands(target: Target, kind: ServerKind, keys: ClientKeys | None) -> tuple[bool, int, str]:
    """Returns whether a handshake succeeded, how many failed in a row, and what to check then."""
    with contextlib.ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.term)
        socket = context.socket(zmq.PUSH)
        stack.callback(socket.close, linger=0)
        handshakes = Handshakes(socket, target.endpoint, kind, keys=keys, is_data=True)
        stack.callback(handshakes.close)
        if keys is not None:
            keys.use(socket, target.endpoint)
        socket.connect(target.endpoint)
        deadline = time.monotonic() + LOOK_S
        while not handshakes.has_succeeded and handshakes.failures < _SURE_FAILURES:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not handshakes.monitor.poll(int(1000 * left_s) + 1):
                break
            handshakes.take()
        return handshakes.has_succeeded, handshakes.failures, handshakes.remedy
