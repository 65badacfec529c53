"""What a daemon or a worker accepts at most; the hello carries it, so that senders check before they send."""

from __future__ import annotations

import msgspec

MIB = 1 << 20
GIB = 1 << 30

MAX_CHUNK_BYTES = 64 * MIB
"""The largest chunk that may be set; larger ones would make high-water marks in messages meaningless."""

MAX_FRAMES = 1024
"""Control messages that may travel as the frames of one message of ZeroMQ's; those who have more send several."""
MAX_ENTRIES = 2048
"""Keys or slots that one message of a trainer's may name; a pool has at most 1024 slots."""

MAX_KEY_BYTES = 256
"""UTF-8 bytes of a key or of a queue's name."""

MAX_POLICY_VERSION = (1 << 63) - 1
"""The greatest policy version that may be told."""

MAX_EXPIRES_S = 1e9
"""The longest expiry and age, some 30 years; a negative expiry is one that is over."""

HEARTBEAT_MS = 5_000
"""ZeroMQ's own heartbeat, sent by whoever connects: how a peer that vanished without a word is noticed."""

HEARTBEAT_TIMEOUT_MS = 30_000
"""Silence after which ZeroMQ gives a connection up; it makes a new one by itself."""

CONTROL_HEARTBEAT_TIMEOUT_MS = 10_000
"""The same where a client waits for answers: it tries a new connection before it takes a silent server to be gone.
Not where bulk data goes: on a slow link a heartbeat waits behind megabytes."""

CONNECT_TIMEOUT_MS = 3_000
"""After which an attempt to connect begins anew; the kernel would repeat its own ever more rarely."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds on one micro-batch and on the messages about it.

    Attributes:
        max_leaves: Arrays in a tree.
        max_depth: Containers around a leaf.
        max_manifest_bytes: Encoded manifest; also bounds the number of static values.
        max_micro_batch_bytes: Bytes of all leaves, with the gaps between them.
        max_key_bytes: UTF-8 bytes of a key or queue name.
        chunk_bytes: Bytes of one chunk; both sides cut the slot's body at the same places.
        max_eager_bytes: Body of a micro-batch that may travel with its offer; 0 = none may.
        size_setting: The receiver's setting that bounds `max_micro_batch_bytes`, for errors.
    """

    max_leaves: int = 4096
    max_depth: int = 32
    max_manifest_bytes: int = MIB
    max_micro_batch_bytes: int = 8 * GIB
    max_key_bytes: int = MAX_KEY_BYTES
    chunk_bytes: int = MIB
    max_eager_bytes: int = 0
    size_setting: str = "slot_max_bytes"


UNLIMITED = Limits(
    max_leaves=1 << 31,
    max_depth=256,
    max_manifest_bytes=1 << 40,
    max_micro_batch_bytes=1 << 62,
    max_key_bytes=1 << 20,
)
"""For what another side has accepted already."""
