"""The header in front of every chunk of bulk data, and the checksum over it.

Byte layout, little-endian, 56 bytes:

| offset | type | what |
| --- | --- | --- |
| 0 | 4 bytes | magic, `FBC2` |
| 4 | u32 | slot index |
| 8 | u32 | span index in the body's layout |
| 12 | u32 | length of the span in bytes, as decoded |
| 16 | u64 | generation of the slot |
| 24 | u64 | token of the grant |
| 32 | u64 | offset of the span in the body, bytes |
| 40 | u64 | xxh3-64 of the decoded bytes, seeded with the offset |
| 48 | u8 | codec, an index into `CODECS`; 7 bytes of zeros follow |
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Final

import xxhash

from .errors import ProtocolError

BytesLike = bytes | bytearray | memoryview

_MAGIC: Final = b"FBC2"
_HEADER: Final = struct.Struct("<4sIIIQQQQB7x")
CHUNK_HEADER_BYTES: Final = _HEADER.size


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkHeader:
    """Where a chunk's bytes belong and what they must hash to; see the module's table."""

    slot: int
    span: int
    length: int
    generation: int
    token: int
    offset: int
    checksum: int
    codec: int = 0

    def pack(self) -> bytes:
        """Encodes to `CHUNK_HEADER_BYTES` bytes."""
        return _HEADER.pack(
            *(_MAGIC, self.slot, self.span, self.length),
            *(self.generation, self.token, self.offset, self.checksum, self.codec),
        )

    @classmethod
    def unpack(cls, frame: BytesLike) -> ChunkHeader:
        """Decodes a frame from a peer.

        Raises:
            ProtocolError: Of another length or without the magic.
        """
        view = memoryview(frame)
        if view.nbytes != CHUNK_HEADER_BYTES:
            raise ProtocolError("chunk header", got=f"{view.nbytes} bytes", limit=f"{CHUNK_HEADER_BYTES} bytes")
        magic, *fields = _HEADER.unpack(view)
        if magic != _MAGIC:
            raise ProtocolError("chunk header has the wrong magic", got=magic, limit=_MAGIC)
        return cls(*fields)


def chunk_checksum(data: BytesLike, offset: int) -> int:
    """Returns the xxh3-64 of a chunk's bytes.

    Args:
        data: The bytes as they were before they were encoded, so that a codec's mistake is found as well.
        offset: Of the span in the body; seeds the hash, so that good bytes in the wrong place fail too.
    """
    return xxhash.xxh3_64_intdigest(data, seed=offset)
