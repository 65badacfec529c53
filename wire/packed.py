"""Small trees that travel inside of a control message: a call's options, and what it returned."""

from __future__ import annotations

import msgspec
import numpy as np

from .errors import TreeError
from .limits import Limits
from .manifest import decode_manifest, describe
from .registry import TreeRegistry
from .tree import flatten, unflatten


class PackedTree(msgspec.Struct, frozen=True, array_like=True):
    """A tree and its bytes.

    Attributes:
        manifest: From `Manifest.encode`.
        body: The leaves one after another, as in a slot's body.
    """

    manifest: bytes
    body: bytes

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a message."""
        return len(self.manifest) + len(self.body)


def pack(tree: object, *, registry: TreeRegistry, limits: Limits) -> PackedTree:
    """Packs a tree of numpy arrays and static values.

    Raises:
        TreeError: It cannot travel, or is larger than the limits say.
    """
    flat = flatten(tree, registry=registry, limits=limits)
    manifest = describe(flat, limits)
    layout = manifest.layout(limits.chunk_bytes)
    body = np.zeros(layout.body_bytes, np.uint8)
    for array, offset in zip(flat.arrays, layout.offsets, strict=True):
        body[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    return PackedTree(manifest.encode(limits), body.tobytes())


def unpack(packed: PackedTree, *, registry: TreeRegistry, limits: Limits) -> object:
    """Puts a packed tree together; its arrays are private copies.

    Raises:
        TreeError: It is malformed, contradicts itself or exceeds the limits.
    """
    manifest = decode_manifest(packed.manifest, limits)
    layout = manifest.layout(limits.chunk_bytes)
    if layout.body_bytes != len(packed.body):
        raise TreeError("a packed tree's bytes do not fit it", got=len(packed.body), limit=layout.body_bytes)
    # Views of one private copy: the message's own bytes are read-only.
    leaves = manifest.views(bytearray(packed.body))
    return unflatten(manifest.structure, leaves, registry=registry)
