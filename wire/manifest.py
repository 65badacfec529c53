"""The manifest: everything about a micro-batch but its bytes, and where those lie in a slot's body.

The layout is a function of the manifest and the chunk size, so both sides compute it and neither sends it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from .chunk import BytesLike
from .codec_names import CODECS, RAW
from .dtypes import DTYPES, dtype_name, dtype_of
from .errors import TooLargeError, TreeError, printable
from .limits import Limits
from .spans import SpanTable, cut_spans, place_leaves
from .structure import Node, checked_structure, leaf_paths
from .tree import Array, FlatTree

_MAX_DIMS = 64  # numpy's own limit
_MAX_EXTENT_BYTES = 1 << 62  # numpy cannot make an array whose non-zero dimensions span more
# A sender's micro-batches mostly differ in nothing but their bytes, and each offer waits for its manifest.
_KEPT_MANIFESTS = 16
_KEPT_MANIFEST_BYTES = 8 << 10  # what 16 of these unfold to was seen to take 10 MB at most


class LeafSpec(msgspec.Struct, frozen=True, array_like=True):
    """One array leaf.

    Attributes:
        dtype: Name from `DTYPES`.
        shape: Dimensions; () is 0-d, and any may be 0.
        codec: Name from `CODECS`; a chunk of the leaf travels in it, or raw.
        nbytes: Decoded bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    codec: str
    nbytes: int


class Manifest(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """A micro-batch without its bytes.

    Attributes:
        structure: Containers and static values.
        leaves: The array leaves in order.
    """

    structure: Node
    leaves: tuple[LeafSpec, ...]

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        """One path per leaf, in leaf order."""
        return tuple(leaf_paths(self.structure))

    @functools.cached_property
    def leaf_bytes(self) -> tuple[int, ...]:
        """Decoded bytes of each leaf."""
        return tuple(leaf.nbytes for leaf in self.leaves)

    @functools.cached_property
    def payload_bytes(self) -> int:
        """Bytes of all leaves together, without the gaps between them."""
        return sum(self.leaf_bytes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each leaf in a slot's body."""
        return self._placed[0]

    @property
    def body_bytes(self) -> int:
        """Bytes of a slot's body from its start to the last leaf's end."""
        return self._placed[1]

    @functools.cached_property
    def _placed(self) -> tuple[tuple[int, ...], int]:
        return place_leaves(self.leaf_bytes)

    def layout(self, chunk_bytes: int) -> BodyLayout:
        """Places the leaves in a slot's body and cuts the body into chunks."""
        spans = cut_spans(self.leaf_bytes, self.offsets, chunk_bytes)
        return BodyLayout(self.offsets, self.body_bytes, spans)

    def views(self, body: BytesLike) -> tuple[Array, ...]:
        """Returns the leaves as views of a body, read-only if that is; copies nothing."""
        return tuple(
            np.ndarray(leaf.shape, DTYPES[leaf.dtype], buffer=body, offset=offset)
            if leaf.nbytes
            else np.empty(leaf.shape, DTYPES[leaf.dtype])
            for leaf, offset in zip(self.leaves, self.offsets, strict=True)
        )

    def encode(self, limits: Limits) -> bytes:
        """Encodes for the wire.

        Raises:
            TreeError: The manifest is larger than the limit.
        """
        encoded = msgspec.msgpack.encode(self)
        _check_manifest_bytes(len(encoded), limits)
        return encoded


@dataclasses.dataclass(frozen=True, slots=True)
class BodyLayout:
    """Where a micro-batch's leaves lie.

    Attributes:
        offsets: Byte offset of each leaf in the body, a multiple of 64.
        body_bytes: Bytes from the body's start to the last leaf's end.
        spans: The pieces of the body that chunks carry, in order.
    """

    offsets: tuple[int, ...]
    body_bytes: int
    spans: SpanTable


def describe(flat: FlatTree, limits: Limits, *, codecs: Sequence[str] | None = None) -> Manifest:
    """Makes the manifest of a tree that was taken apart.

    Args:
        flat: The tree.
        limits: The receiver's.
        codecs: In which each leaf may travel; by default all travel raw.

    Raises:
        TreeError: The micro-batch is larger than the limits say.
    """
    leaves = tuple(
        LeafSpec(dtype_name(array.dtype, path), array.shape, codec, array.nbytes)
        for array, path, codec in zip(
            flat.arrays, flat.paths, [RAW] * len(flat.arrays) if codecs is None else codecs, strict=True
        )
    )
    manifest = Manifest(flat.structure, leaves)
    _check_body_bytes(manifest, limits)
    return manifest


def decode_manifest(encoded: bytes, limits: Limits) -> Manifest:
    """Decodes and checks a manifest from a peer; one of the last that were right is not looked at again.

    No memory is taken for what it declares.

    Args:
        encoded: From `Manifest.encode`.
        limits: This side's limits.

    Raises:
        TreeError: It is malformed, contradicts itself or exceeds a limit; the message names the leaf's path.
        TooLargeError: Only the bytes of all of it are more than the limit.
    """
    _check_manifest_bytes(len(encoded), limits)
    decode = _decode_once if len(encoded) <= _KEPT_MANIFEST_BYTES else _decode
    return decode(encoded, limits)


def _decode(encoded: bytes, limits: Limits) -> Manifest:
    try:
        manifest = _decoder().decode(encoded)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TreeError(f"the manifest cannot be read: {printable(str(error))}") from error
    if len(manifest.leaves) > limits.max_leaves:
        raise TreeError("the manifest has too many leaves", got=len(manifest.leaves), limit=limits.max_leaves)
    structure, paths = checked_structure(manifest.structure, len(manifest.leaves), limits)
    manifest = Manifest(structure, manifest.leaves)
    vars(manifest)["paths"] = tuple(paths)  # where the property keeps them; else a second walk would find them
    for leaf, path in zip(manifest.leaves, paths, strict=True):
        _check_leaf(leaf, path)
    _check_body_bytes(manifest, limits)
    return manifest


_decode_once = functools.lru_cache(_KEPT_MANIFESTS)(_decode)


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[Manifest]:
    return msgspec.msgpack.Decoder(Manifest)


def _check_leaf(leaf: LeafSpec, path: str) -> None:
    itemsize = dtype_of(leaf.dtype, path).itemsize
    if leaf.codec not in CODECS:
        raise TreeError(f"leaf {path} has an unknown codec", got=leaf.codec, limit=list(CODECS))
    has_bytes = 0 < leaf.nbytes == math.prod(leaf.shape) * itemsize
    if has_bytes and len(leaf.shape) <= _MAX_DIMS and min(leaf.shape, default=1) > 0:
        return
    if len(leaf.shape) > _MAX_DIMS or any(dim < 0 for dim in leaf.shape):
        raise TreeError(
            f"leaf {path} has an impossible shape",
            got=leaf.shape,
            limit=f"{_MAX_DIMS} dimensions, none below 0",
        )
    if math.prod(max(dim, 1) for dim in leaf.shape) * itemsize > _MAX_EXTENT_BYTES:
        raise TreeError(
            f"leaf {path} has a shape that overflows", got=leaf.shape, limit=f"{_MAX_EXTENT_BYTES} bytes"
        )
    if math.prod(leaf.shape) * itemsize != leaf.nbytes:
        raise TreeError(
            f"leaf {path} has a shape that does not fit its bytes",
            got=f"{leaf.dtype}{list(leaf.shape)} in {leaf.nbytes} bytes",
            limit=f"{math.prod(leaf.shape) * itemsize} bytes",
        )


def _check_body_bytes(manifest: Manifest, limits: Limits) -> None:
    if manifest.body_bytes > limits.max_micro_batch_bytes:
        leaf_bytes = manifest.leaf_bytes
        # The largest leaf is named because it is nearly always the one to shrink.
        largest = max(range(len(leaf_bytes)), key=leaf_bytes.__getitem__)
        setting = printable(limits.size_setting)
        raise TooLargeError(
            f"the micro-batch is larger than {setting} allows; its largest leaf is "
            f"{manifest.paths[largest]} with {leaf_bytes[largest]} bytes",
            got=f"{manifest.body_bytes} bytes",
            limit=f"{limits.max_micro_batch_bytes} bytes",
            remedy=f"send less at once, or raise {setting} at the receiver",
        )


def _check_manifest_bytes(nbytes: int, limits: Limits) -> None:
    if nbytes > limits.max_manifest_bytes:
        raise TreeError(
            "the manifest is too large",
            got=f"{nbytes} bytes",
            limit=f"{limits.max_manifest_bytes} bytes",
            remedy="send long static values as arrays",
        )
