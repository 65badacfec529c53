"""The names of the codecs, for those who only choose one."""

from __future__ import annotations

from typing import Final

RAW: Final = "raw"
SHUFFLE_LZ4: Final = "shuffle-lz4"
BITSHUFFLE_LZ4: Final = "bitshuffle-lz4"

CODECS: Final = (RAW, SHUFFLE_LZ4, BITSHUFFLE_LZ4)
"""The names of the codecs that a leaf may travel in; a chunk's header holds the index."""
