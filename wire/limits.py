"""What a daemon accepts at most; the hello carries it, so that senders check before they send."""

from __future__ import annotations

import msgspec

MIB = 1 << 20
GIB = 1 << 30


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds on one micro-batch and on the messages about it.

    Attributes:
        max_leaves: Arrays in a tree.
        max_depth: Containers around a leaf.
        max_manifest_bytes: Encoded manifest; also bounds the number of static values.
        max_micro_batch_bytes: Bytes that a slot may grow to.
        max_key_bytes: UTF-8 bytes of a key or queue name.
        chunk_bytes: Bytes of one chunk; both sides cut the slot's body at the same places.
    """

    max_leaves: int = 4096
    max_depth: int = 32
    max_manifest_bytes: int = MIB
    max_micro_batch_bytes: int = 8 * GIB
    max_key_bytes: int = 256
    chunk_bytes: int = MIB
