"""What all control messages have in common.

A control message is one frame: a msgpack map tagged with its type. A request carries an `id` that its answers
repeat. Every request may be sent again: a repeat gets what the first one got, or would have got.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from .errors import ProtocolError, printable
from .states import RefusalCode

PROTOCOL_VERSION = 4
"""Grows whenever an older peer could misread a newer one."""

_MAX_PID: Final = (1 << 31) - 1

M = TypeVar("M")


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """A control message."""

    id: int = 0


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Who is at the other end, for people to read; never used to tell who is alive.

    Attributes:
        name: What it calls itself.
        pid: As its own namespace has it; 0 if only the name is known.
        host: Its host's name.
    """

    name: str
    pid: Annotated[int, msgspec.Meta(ge=0, le=_MAX_PID)]
    host: str

    def __str__(self) -> str:
        name = self.name if self.name.strip() else "a nameless process"
        return f"{name} pid {self.pid} on {self.host}" if self.pid else name


class Refused(Message, frozen=True):
    """No, and why. The daemon's version is told so that a mismatch can name both."""

    code: RefusalCode
    words: str
    version: int = PROTOCOL_VERSION


class Goodbye(Message, frozen=True):
    """The daemon stops; what it still held is lost unless `kept`."""

    kept: bool


def encode_message(message: Message) -> bytes:
    """Encodes a control message as one frame."""
    return msgspec.msgpack.encode(message)


def decode_with(decoder: msgspec.msgpack.Decoder[M], frame: bytes) -> M:
    """Decodes a frame from a peer.

    Raises:
        ProtocolError: It is not one of the decoder's messages.
    """
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a control message cannot be read: {printable(str(error))}") from error
