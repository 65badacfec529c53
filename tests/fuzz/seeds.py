"""Good inputs of every decoder, to start from: what is nearly right reaches further than what is random."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from forebay.shm import LockNote, PoolHeader
from forebay.shm.layout import HEADER_BYTES, Envelope, format_header, write_envelope
from forebay.wire import (
    BITSHUFFLE_LZ4,
    PROTOCOL_VERSION,
    SHUFFLE_LZ4,
    Attach,
    Await,
    Call,
    CallId,
    CallState,
    ChunkHeader,
    FindPool,
    Finished,
    GetStatus,
    GetWorkerStatus,
    Granted,
    Hello,
    InProgress,
    Lend,
    Message,
    MicroBatchState,
    Offer,
    PackedTree,
    Peer,
    PoolFound,
    RefusalCode,
    Refused,
    TreeRegistry,
    Want,
    describe,
    encode_chunk,
    encode_message,
    flatten,
)

from .targets import LIMITS

_PEER: Final = Peer(name="seed", pid=1, host="here")
_TREE: Final = {
    "ids": np.arange(6, dtype=np.int16).reshape(2, 3),
    "n": (1, None, "x"),
    3: [np.zeros((), bool), []],
}
_MANIFEST: Final = describe(flatten(_TREE, registry=TreeRegistry(), limits=LIMITS), LIMITS).encode(LIMITS)
_CHUNK: Final = np.arange(2048, dtype=np.int16).view(np.uint8).data
_REFUSED: Final = Refused(id=1, code=RefusalCode.NO_SLOT, words="none")


def _encoded(*messages: Message) -> tuple[bytes, ...]:
    return tuple(map(encode_message, messages))


def _slot_page() -> bytes:
    page = memoryview(bytearray(8192))
    format_header(page)
    envelope = msgspec.msgpack.encode(Envelope("queue", "key", "attempt", _MANIFEST))
    write_envelope(page, envelope, 0, 64)
    return bytes(page)


def _chunks() -> tuple[bytes, ...]:
    made = (encode_chunk(codec, _CHUNK, 2) for codec in (SHUFFLE_LZ4, BITSHUFFLE_LZ4))
    return tuple(chunk for chunk in made if chunk is not None)


SEEDS: Final[dict[str, tuple[bytes, ...]]] = {
    "control_request": _encoded(
        Hello(id=1, version=PROTOCOL_VERSION, peer=_PEER),
        Offer(id=2, queue="q", key="k", attempt="a", manifest=_MANIFEST, wait_s=1.0),
        Await(id=3, queue="q", key="k", until=MicroBatchState.CONSUMED),
        GetStatus(id=4),
    ),
    "control_reply": _encoded(
        Granted(
            id=1, attempt="a", slot=0, generation=1, token=7, missing=((0, 2),), received_bytes=0, chunk_bytes=4096
        ),
        _REFUSED,
    ),
    "trainer_request": _encoded(
        FindPool(version=PROTOCOL_VERSION),
        Attach(version=PROTOCOL_VERSION, queue="q", holder="h", peer=_PEER),
        Want(holder="h", credit_total=1, keys=("k",)),
        Finished(holder="h", key="k"),
    ),
    "trainer_reply": _encoded(
        PoolFound(version=PROTOCOL_VERSION, software="", epoch="e", pool="/p"),
        Lend(slot=0, generation=1, key="k", file_bytes=4096, on_credit=True),
        _REFUSED,
    ),
    "call_request": _encoded(
        Call(epoch="e", call=CallId("c", 1), method="update", options=PackedTree(_MANIFEST, b"x")),
        GetWorkerStatus(id=1),
    ),
    "call_reply": _encoded(InProgress(state=CallState.RUNNING), _REFUSED),
    "manifest": (_MANIFEST,),
    "packed_tree": (_MANIFEST,),
    "chunk_header": (ChunkHeader(0, 1, 2, 3, 4, 5, 6, 1).pack(),),
    "chunk": _chunks(),
    "chunk_with_right_sizes": _chunks(),
    "slot_header": (_slot_page()[:HEADER_BYTES],),
    "envelope": (_slot_page(),),
    "envelope_with_right_checksum": (msgspec.msgpack.encode(Envelope("queue", "key", "attempt", _MANIFEST)),),
    "lock_note": (msgspec.json.encode(LockNote(_PEER, "2026-01-01T00:00:00+0000")),),
    "pool_header": (msgspec.json.encode(PoolHeader(1, "epoch")),),
    "settings_file": (b'slots = 2\ncontrol_endpoint = "ipc:///run/f/c"\nfill_lease_s = 1.5\nkeep_pool = true\n',),
}
"""By the names of `TARGETS`."""
