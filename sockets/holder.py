"""Who holds an address that cannot be bound, as far as it can be asked."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Final

import zmq

from forebay.shm import this_peer
from forebay.wire import (
    PROTOCOL_VERSION,
    Hello,
    Message,
    ProtocolError,
    Welcome,
    decode_call_reply,
    decode_control_reply,
    encode_message,
)

from .gate import ServerKeys
from .keys import ClientKeys

_ASK_S: Final = 1.0
_GREETING_BYTES: Final = 64
_MECHANISM: Final = slice(12, 32)
_SIGNATURE_AND_VERSION: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01"
"""What makes the other side tell all of its greeting. Source: ZMTP 3.1, ZeroMQ's RFC 37."""

_SAME_KEYS: Final = "a daemon or worker that has the same key_file as this one; ss -ltnp tells which process it is"
_WITH_KEYS: Final = "a server with keys, perhaps a Forebay daemon or worker; ss -ltnp tells which process it is"
_UNKNOWN: Final = "a process that does not say who it is; ss -ltnp tells which one"


def who_holds(context: zmq.Context[zmq.Socket[bytes]], address: str, keys: ServerKeys | None) -> str:
    """Asks whoever is at a tcp address who it is; takes some seconds at most.

    Args:
        context: For the asking.
        address: It.
        keys: Of the server that wanted it: one that was started twice has the same.

    Returns:
        Words for an error.
    """
    address = address.replace("*", "127.0.0.1")
    if _mechanism(address) != b"CURVE":
        return _ask(context, address, None) or _UNKNOWN
    if keys is None:
        return _WITH_KEYS
    return _ask(context, address, ClientKeys(keys.own, keys.own.public)) or _WITH_KEYS


def _mechanism(address: str) -> bytes:
    """Returns how a ZeroMQ peer wants its peers to prove who they are; empty if there is none."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    told = b""
    with contextlib.suppress(OSError, ValueError):
        give_up_at = time.monotonic() + _ASK_S
        with socket.create_connection((host.strip("[]"), int(port)), _ASK_S) as probe:
            probe.sendall(_SIGNATURE_AND_VERSION)
            while len(told) < _GREETING_BYTES and (left_s := give_up_at - time.monotonic()) > 0:
                probe.settimeout(left_s)
                piece = probe.recv(_GREETING_BYTES - len(told))
                if not piece:
                    break
                told += piece
    return told[_MECHANISM].rstrip(b"\0") if len(told) == _GREETING_BYTES else b""


def _ask(context: zmq.Context[zmq.Socket[bytes]], address: str, keys: ClientKeys | None) -> str:
    """Says hello; returns whoever answers in words, empty if nobody does."""
    with context.socket(zmq.DEALER) as probe:
        probe.linger = 0
        # A peer of another kind is dropped at its greeting; then there is nobody to send to, for ever.
        probe.sndtimeo = int(_ASK_S * 1000)
        refused = probe.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        try:
            if keys is not None:
                keys.use(probe, address)
            probe.connect(address)
            probe.send(encode_message(Hello(id=1, version=PROTOCOL_VERSION, peer=this_peer("forebay probe"))))
            poller = zmq.Poller()
            poller.register(probe, zmq.POLLIN)
            poller.register(refused, zmq.POLLIN)
            heard = dict(poller.poll(int(_ASK_S * 1000)))
            if probe in heard:
                return _who_says(probe.recv())
            # Only who has its secret key can read this side's and not know it.
            return _SAME_KEYS if refused in heard else ""
        except zmq.ZMQError:
            return ""
        finally:
            probe.disable_monitor()
            refused.close()


def _who_says(frame: bytes) -> str:
    answer: Message | None = None
    for decode in (decode_control_reply, decode_call_reply):
        with contextlib.suppress(ProtocolError):
            answer = decode(frame)
    if isinstance(answer, Welcome):
        return f"{answer.peer.name} pid {answer.peer.pid} on {answer.peer.host}"
    if answer is None:
        return "a process that does not speak Forebay's protocol"
    return "a process that does not answer as a Forebay daemon or worker"
