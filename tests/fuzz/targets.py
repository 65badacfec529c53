"""Every decoder of bytes that somebody else wrote, as a function of bytes that may raise only what it says.

The property tests and the coverage-guided harness share them.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from forebay.daemon.settings import load_settings
from forebay.shm import read_note, read_pool_header
from forebay.shm.layout import format_header, read_envelope, read_header, write_envelope
from forebay.wire import (
    BITSHUFFLE_LZ4,
    SHUFFLE_LZ4,
    ChunkHeader,
    ForebayError,
    HostError,
    Limits,
    PackedTree,
    ProtocolError,
    SettingError,
    TreeError,
    TreeRegistry,
    decode_call_reply,
    decode_call_request,
    decode_chunk,
    decode_control_reply,
    decode_control_request,
    decode_manifest,
    decode_trainer_reply,
    decode_trainer_request,
    unpack,
)

LIMITS: Final = Limits(max_leaves=64, max_manifest_bytes=1 << 16, max_micro_batch_bytes=1 << 20, max_depth=16)
_DECODED_BYTES: Final = 4096


@functools.cache
def _folder() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="forebay-fuzz-")
    _FOLDERS.append(holder)
    return Path(holder.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Kept until the process ends, which removes them."""


def _file(data: bytes, name: str) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _manifest(data: bytes) -> None:
    manifest = decode_manifest(data, LIMITS)
    assert manifest.layout(LIMITS.chunk_bytes).body_bytes <= LIMITS.max_micro_batch_bytes
    assert len(manifest.paths) == len(manifest.leaves) <= LIMITS.max_leaves


def _packed(data: bytes) -> None:
    """Takes the bytes for a manifest, and then for a manifest and a body of the size that it declares."""
    body = b""
    try:
        body = bytes(decode_manifest(data, LIMITS).layout(LIMITS.chunk_bytes).body_bytes)
    except TreeError:
        body = data
    unpack(PackedTree(data, body), registry=TreeRegistry(), limits=LIMITS)


def _chunk(data: bytes) -> None:
    ring = np.full(_DECODED_BYTES + 128, 0xA5, np.uint8)
    try:
        # Either codec, so that whatever the frame says of itself is looked into.
        with contextlib.suppress(ProtocolError):
            return decode_chunk(SHUFFLE_LZ4, data, ring[64:-64].data)
        return decode_chunk(BITSHUFFLE_LZ4, data, ring[64:-64].data)
    finally:
        around = np.concatenate([ring[:64], ring[-64:]])
        assert (around == 0xA5).all(), "written outside of the chunk's place"


def _chunk_with_right_sizes(data: bytes) -> None:
    """Gets past the look at the declared sizes, to the codec itself."""
    frame = bytearray(data.ljust(16, b"\0"))
    frame[4:8] = _DECODED_BYTES.to_bytes(4, "little")
    frame[12:16] = len(frame).to_bytes(4, "little")
    _chunk(bytes(frame))


def _envelope(data: bytes) -> None:
    page = memoryview(bytearray(data.ljust(8192, b"\0")))
    read_envelope(page, read_header(page))


def _envelope_with_right_checksum(data: bytes) -> None:
    """Gets past the checksum, to the decoder itself."""
    page = memoryview(bytearray(8192 + len(data)))
    format_header(page)
    write_envelope(page, data, 0, 64)
    read_envelope(page, read_header(page))


def _note(data: bytes) -> None:
    note = read_note(_file(data, "note"))
    msgspec.msgpack.encode(note)  # a daemon tells of its peer


def _pool_header(data: bytes) -> None:
    _file(data, "pool.json")
    read_pool_header(_folder())


def _settings(data: bytes) -> None:
    load_settings(environment={}, file=_file(data, "forebay.toml"))


def _chunk_header(data: bytes) -> None:
    header = ChunkHeader.unpack(data)
    assert ChunkHeader.unpack(header.pack()) == header


TARGETS: Final[dict[str, tuple[Callable[[bytes], object], type[ForebayError] | tuple[()]]]] = {
    "control_request": (decode_control_request, ProtocolError),
    "control_reply": (decode_control_reply, ProtocolError),
    "trainer_request": (decode_trainer_request, ProtocolError),
    "trainer_reply": (decode_trainer_reply, ProtocolError),
    "call_request": (decode_call_request, ProtocolError),
    "call_reply": (decode_call_reply, ProtocolError),
    "manifest": (_manifest, TreeError),
    "packed_tree": (_packed, TreeError),
    "chunk_header": (_chunk_header, ProtocolError),
    "chunk": (_chunk, ProtocolError),
    "chunk_with_right_sizes": (_chunk_with_right_sizes, ProtocolError),
    "slot_header": (lambda data: read_header(memoryview(data)), HostError),
    "envelope": (_envelope, HostError),
    "envelope_with_right_checksum": (_envelope_with_right_checksum, HostError),
    "lock_note": (_note, ()),
    "pool_header": (_pool_header, HostError),
    "settings_file": (_settings, SettingError),
}
"""Name -> what decodes, and the one kind of error that may come of it."""


def run(name: str, data: bytes) -> None:
    """Decodes; anything but the result and the one kind of error is a finding and gets out."""
    decode, expected = TARGETS[name]
    try:
        decode(data)
    except expected as error:
        text = str(error)
        assert text.isprintable(), f"{name}: the message could drive a terminal: {text!r}"
        assert len(text) < 4096, f"{name}: the message has {len(text)} characters"
