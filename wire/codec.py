"""How a chunk's bytes travel: as they are, or shuffled and compressed. Exact for every bit pattern.

Each chunk is encoded alone, so chunks may come in any order and are decoded straight into their place. A chunk
that would not become smaller travels raw, whatever the codec of its leaf.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from numcodecs import blosc

from .codec_names import BITSHUFFLE_LZ4, SHUFFLE_LZ4
from .errors import LocalError, ProtocolError

_SHUFFLES: Final = {SHUFFLE_LZ4: blosc.SHUFFLE, BITSHUFFLE_LZ4: blosc.BITSHUFFLE}
_LEVEL: Final = 5
"""Measured on expert ids and on floats: lower levels gain no speed, higher ones no bytes."""

_FRAME_HEAD: Final = struct.Struct("<4BIII")
"""Blosc's own header: versions, flags, item size; decoded bytes, block bytes, encoded bytes."""

_COMPRESSOR_SHIFT: Final = 5
_LZ4_FORMAT: Final = 1
_UNSPLIT_FLAG: Final = 0x10
_SHUFFLE_FLAGS: Final = {SHUFFLE_LZ4: 0x1, BITSHUFFLE_LZ4: 0x4}
"""In the header's flags; neither is set for items of one byte."""


def encode(codec: str, data: memoryview, itemsize: int) -> bytes | None:
    """Encodes a chunk; gives the interpreter lock up meanwhile.

    Args:
        codec: From `CODECS`, not raw.
        data: The chunk's bytes.
        itemsize: Bytes of one element of its leaf.

    Returns:
        The encoded bytes, or None if they would not be fewer.

    Raises:
        LocalError: The library cannot.
    """
    try:
        encoded: bytes = blosc.compress(data, b"lz4", _LEVEL, _SHUFFLES[codec], blosc.AUTOBLOCKS, itemsize)
    except (RuntimeError, ValueError) as error:
        raise LocalError(f"a chunk of {len(data)} bytes cannot be encoded ({codec}): {error}") from error
    return encoded if len(encoded) < len(data) else None


def decode(codec: str, frame: Any, target: memoryview) -> None:
    """Decodes a chunk into its place; gives the interpreter lock up meanwhile.

    Args:
        codec: From `CODECS`, not raw; a frame that was made by anything else is not looked into.
        frame: From `encode`, on whatever side; a buffer. Nothing is written where it declares other sizes.
        target: Exactly the chunk's place.

    Raises:
        ProtocolError: It is damaged, or declares another codec or other sizes; what the target holds then is
            undefined.
    """
    view = memoryview(frame)
    if view.nbytes < _FRAME_HEAD.size:
        raise ProtocolError("an encoded chunk is too short", got=view.nbytes, limit=_FRAME_HEAD.size)
    _, _, flags, _, decoded_bytes, _block_bytes, encoded_bytes = _FRAME_HEAD.unpack_from(view)
    if flags & ~(_SHUFFLE_FLAGS[codec] | _UNSPLIT_FLAG) != _LZ4_FORMAT << _COMPRESSOR_SHIFT:
        raise ProtocolError("an encoded chunk declares another codec than it should have", got=flags, limit=codec)
    if (decoded_bytes, encoded_bytes) != (target.nbytes, view.nbytes):
        raise ProtocolError(
            "an encoded chunk declares other sizes than it has",
            got=f"{encoded_bytes} bytes for {decoded_bytes}",
            limit=f"{view.nbytes} bytes for {target.nbytes}",
        )
    try:
        blosc.decompress(view, np.frombuffer(target, np.uint8))
    except (RuntimeError, ValueError) as error:
        raise ProtocolError(f"an encoded chunk is damaged: {error}") from error
