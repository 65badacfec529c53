"""The byte layout of a slot file, drawn once.

A file is one page of header, then the body, then the envelope. The daemon alone writes; trainers read. `state`
is a single aligned store after all that it vouches for, so that a daemon killed at any moment leaves a header that
says the truth.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Final

import msgspec
import xxhash

from forebay.wire import LEAF_ALIGNMENT, HostError, printable

from .states import SlotState

MAGIC: Final = b"FOREBAY1"
LAYOUT_VERSION: Final = 3
MAX_COUNT: Final = (1 << 63) - 1
"""What a generation or sequence is at most; damage apart, neither gets near."""
BODY_OFFSET: Final = 4096
"""Bytes from the file's start to the body: one page, so that leaves keep their alignment in memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One row of the layout."""

    offset: int
    format: str
    unit: str
    meaning: str


HEADER_FIELDS: Final = {
    "magic": Field(0, "8s", "bytes", "marks a slot file"),
    "layout_version": Field(8, "<I", "count", "grows when this table, the envelope or the journal changes"),
    "state": Field(12, "<I", "SlotState", "where the slot is"),
    "generation": Field(16, "<Q", "count", "grows at each loan"),
    "sequence": Field(24, "<Q", "count", "place in the queue; smaller is sooner"),
    "body_bytes": Field(32, "<Q", "bytes", "length of the body"),
    "envelope_bytes": Field(40, "<Q", "bytes", "length of the envelope after the body"),
    "envelope_checksum": Field(48, "<Q", "xxh3-64", "of the envelope, seeded with the generation"),
    "holder": Field(56, "64s", "UTF-8", "name of the holder's lock file while LENT, else empty"),
    "ready_at": Field(
        120, "<d", "s", "second of CLOCK_MONOTONIC in which it was published; old while FREE or FILLING"
    ),
    "lent_at": Field(128, "<d", "s", "the same, of its lend, while LENT or QUARANTINED; else old or 0"),
}
"""Name to place; written by the daemon and read by trainers and by the next daemon."""

_PLACES: Final = {
    name: (slice(field.offset, field.offset + struct.calcsize(field.format)), struct.Struct(field.format).pack)
    for name, field in HEADER_FIELDS.items()
}
"""Made once: each micro-batch takes a dozen stores."""

HEADER_BYTES: Final = 136


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What a slot holds, in its own file, so that it needs no message to be understood.

    Attributes:
        queue: Queue name.
        key: The micro-batch's key.
        attempt: The stage call that filled it.
        manifest: From `Manifest.encode`.
        offered_at: Second of CLOCK_MONOTONIC in which its stage call began. The clock is the host's and starts
            with it, as does the memory that a pool lies in.
        expires_at: Second of the same clock from which on it is stale; None for never.
        policy_version: Of the policy that it was made with; None if nobody said.
    """

    queue: str
    key: str
    attempt: str
    manifest: bytes
    offered_at: float = 0.0
    expires_at: float | None = None
    policy_version: int | None = None


_ENVELOPE = msgspec.msgpack.Decoder(Envelope)


def envelope_offset(body_bytes: int) -> int:
    """Returns where the envelope starts in the file."""
    return BODY_OFFSET + -(-body_bytes // LEAF_ALIGNMENT) * LEAF_ALIGNMENT


def file_bytes_for(body_bytes: int, envelope_bytes: int) -> int:
    """Returns the file size that a micro-batch needs."""
    return envelope_offset(body_bytes) + envelope_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class SlotHeader:
    """A decoded header; see `HEADER_FIELDS`."""

    state: SlotState
    generation: int
    sequence: int
    body_bytes: int
    envelope_bytes: int
    envelope_checksum: int
    holder: str
    ready_at: float
    lent_at: float


def write_field(buffer: memoryview, name: str, value: float | bytes) -> None:
    """Stores one header field.

    In one copy: `pack_into` writes zeros first, and a daemon killed in between would leave a FREE slot.
    """
    place, pack = _PLACES[name]
    buffer[place] = pack(value)


def write_envelope(buffer: memoryview, envelope: bytes, generation: int, body_bytes: int) -> None:
    """Stores the envelope after the body and describes both in the header."""
    start = envelope_offset(body_bytes)
    buffer[start : start + len(envelope)] = envelope
    write_field(buffer, "body_bytes", body_bytes)
    write_field(buffer, "envelope_bytes", len(envelope))
    checksum = xxhash.xxh3_64_intdigest(envelope, seed=generation)
    write_field(buffer, "envelope_checksum", checksum)


def format_header(buffer: memoryview) -> None:
    """Writes the header of a fresh, FREE slot."""
    write_field(buffer, "layout_version", LAYOUT_VERSION)
    write_field(buffer, "state", SlotState.FREE)
    write_field(buffer, "generation", 0)
    write_field(buffer, "magic", MAGIC)


def read_header(buffer: memoryview) -> SlotHeader:
    """Decodes a header.

    Raises:
        HostError: The file is no slot file of this layout version.
    """
    if len(buffer) < HEADER_BYTES:
        raise HostError("not a slot file", got=f"{len(buffer)} bytes", limit=f"at least {HEADER_BYTES} bytes")
    values = {
        name: struct.unpack_from(field.format, buffer, field.offset)[0] for name, field in HEADER_FIELDS.items()
    }
    found = (values.pop("magic"), values.pop("layout_version"))
    if found != (MAGIC, LAYOUT_VERSION):
        remedy = "it is another Forebay version's: stop what uses its pool, and remove the pool's folder"
        raise HostError("not a slot file of this version", got=found, limit=(MAGIC, LAYOUT_VERSION), remedy=remedy)
    try:
        values["state"] = SlotState(values["state"])
    except ValueError as error:
        limit = [state.value for state in SlotState]
        raise HostError("the slot's state is none", got=values["state"], limit=limit) from error
    values["holder"] = values["holder"].rstrip(b"\0").decode(errors="replace")
    return SlotHeader(**values)


def read_envelope(buffer: memoryview, header: SlotHeader) -> Envelope:
    """Decodes the envelope that a header describes.

    Raises:
        HostError: The envelope does not lie in the file or is not the one that was written.
    """
    start = envelope_offset(header.body_bytes)
    # A view: where its length is damaged, it may be all of a large slot.
    encoded = buffer[start : start + header.envelope_bytes]
    remedy = "the micro-batch must be sent again"
    if xxhash.xxh3_64_intdigest(encoded, seed=header.generation) != header.envelope_checksum:
        raise HostError("the slot's envelope is damaged", remedy=remedy)
    try:
        return _ENVELOPE.decode(encoded)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HostError(f"the slot's envelope cannot be read: {printable(str(error))}", remedy=remedy) from error
