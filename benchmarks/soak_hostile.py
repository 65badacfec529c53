"""A hostile peer: garbage for every port of the daemon."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec
import zmq

from forebay.wire import ChunkHeader

_PIECES: Final = 12
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""What ZeroMQ's protocol begins with: garbage after it comes further than garbage before it."""


def send_garbage(seed: int, endpoints: Sequence[str]) -> None:
    """Sends garbage of a seed to each endpoint: bytes, broken greetings, and messages that are none.

    Args:
        seed: Of `random.Random`.
        endpoints: ZeroMQ addresses, tcp or ipc.
    """
    chance = random.Random(seed)
    with zmq.Context() as context:
        for endpoint in endpoints:
            # The daemon may be away just now, or hang up in the middle.
            with contextlib.suppress(OSError):
                _send_bytes(chance, endpoint)
            for kind in (zmq.DEALER, zmq.PUSH):
                _send_messages(chance, context, kind, endpoint)


def _send_bytes(chance: random.Random, endpoint: str) -> None:
    parts = urlsplit(endpoint)
    is_tcp = parts.scheme == "tcp"
    with socket.socket(socket.AF_INET if is_tcp else socket.AF_UNIX) as peer:
        peer.settimeout(1.0)
        peer.connect((parts.hostname, parts.port) if is_tcp else endpoint.removeprefix("ipc://"))
        peer.sendall((_GREETING if chance.random() < 0.5 else b"") + chance.randbytes(chance.randrange(1, 4096)))


def _send_messages(
    chance: random.Random, context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str
) -> None:
    with context.socket(kind) as peer:
        peer.linger = 200
        peer.sndtimeo = 200
        peer.immediate = True
        peer.connect(endpoint)
        with contextlib.suppress(zmq.Again):
            for _ in range(_PIECES):
                peer.send_multipart([_frame(chance) for _ in range(chance.randrange(1, 4))])


def _frame(chance: random.Random) -> bytes:
    return chance.choice(_FRAMES)(chance)


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(0, 2048))


def _chunk(chance: random.Random) -> bytes:
    return ChunkHeader(
        slot=chance.randrange(8),
        span=chance.randrange(64),
        length=chance.randrange(1 << 20),
        generation=chance.randrange(64),
        token=chance.getrandbits(64),
        offset=chance.randrange(1 << 22),
        checksum=chance.getrandbits(64),
    ).pack()


def _message(chance: random.Random) -> bytes:
    fields = {
        chance.choice(("id", "key", "queue", "slot", "type", "holder")): chance.getrandbits(16) for _ in range(4)
    }
    return msgspec.msgpack.encode(chance.choice((fields, list(fields.values()), {"type": "offer", **fields})))


_FRAMES: Final[tuple[Callable[[random.Random], bytes], ...]] = (_noise, _chunk, _message)
