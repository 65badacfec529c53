"""A micro-batch that is ready to be sent: its bytes, where they are, and how they are to travel."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from forebay.wire import Array, FlatTree, Limits, Manifest, Span, describe

from .codec_choice import AS_IT_IS, CodecChoice


@dataclasses.dataclass(frozen=True, slots=True)
class Payload:
    """A micro-batch ready to be sent.

    Attributes:
        manifest: What it is.
        leaves: The bytes of each leaf, views of the caller's arrays.
        choices: How each leaf may travel.
        itemsizes: Bytes of one element of each leaf.
    """

    manifest: Manifest
    leaves: tuple[memoryview, ...]
    choices: tuple[CodecChoice, ...]
    itemsizes: tuple[int, ...]

    @classmethod
    def of(cls, flat: FlatTree, limits: Limits, choices: tuple[CodecChoice, ...] | None = None) -> Payload:
        """Prepares a tree that was taken apart; copies nothing.

        Args:
            flat: The tree.
            limits: The receiver's.
            choices: One for each leaf; by default all travel raw.

        Raises:
            TreeError: The micro-batch is larger than the limits say.
        """
        choices = (AS_IT_IS,) * len(flat.arrays) if choices is None else choices
        manifest = describe(flat, limits, codecs=[choice.codec for choice in choices])
        itemsizes = tuple(array.itemsize for array in flat.arrays)
        return cls(manifest, tuple(map(_bytes_of, flat.arrays)), choices, itemsizes)

    def choice_for(self, span: Span) -> CodecChoice:
        """Returns how a span may travel; what several small leaves share travels raw."""
        return self.choices[span.first_leaf] if span.leaf_count == 1 else AS_IT_IS

    def body(self) -> bytes:
        """Returns the whole body, a copy; for small ones."""
        manifest = self.manifest
        return bytes(self.read(Span(0, manifest.body_bytes, 0, len(self.leaves)), manifest.offsets))

    def read(self, span: Span, offsets: Sequence[int]) -> memoryview:
        """Returns a span's bytes: a view of one leaf, or small leaves packed with zeroed gaps."""
        if span.leaf_count == 1:
            start = span.offset - offsets[span.first_leaf]
            return self.leaves[span.first_leaf][start : start + span.length]
        packed = bytearray(span.length)
        for leaf in range(span.first_leaf, span.first_leaf + span.leaf_count):
            start = offsets[leaf] - span.offset
            packed[start : start + len(self.leaves[leaf])] = self.leaves[leaf]
        return memoryview(packed)


@dataclasses.dataclass(frozen=True, slots=True)
class LeafReport:
    """How a leaf has travelled.

    Attributes:
        path: Its place in the tree.
        codec: That its chunks could travel in; on a fast link they go raw all the same.
        payload_bytes: Bytes of the array.
        wire_bytes: Bytes that left for it, those that had to be sent again included. Small leaves that share a
            chunk are reported with their own bytes.
    """

    path: str
    codec: str
    payload_bytes: int
    wire_bytes: int


class WireBytes:
    """Counts what leaves for each leaf of a payload, and holds nothing of it; for one thread at a time."""

    def __init__(self, payload: Payload) -> None:
        self._manifest = payload.manifest
        self._by_leaf = [0] * len(payload.leaves)

    def sent(self, span: Span, nbytes: int) -> None:
        """Notes that a span has left as so many bytes."""
        if span.leaf_count == 1:
            self._by_leaf[span.first_leaf] += nbytes
            return
        for leaf in range(span.first_leaf, span.first_leaf + span.leaf_count):
            self._by_leaf[leaf] += self._manifest.leaves[leaf].nbytes

    @property
    def total(self) -> int:
        """Bytes of all leaves that have left."""
        return sum(self._by_leaf)

    def report(self) -> tuple[LeafReport, ...]:
        """Tells it leaf by leaf."""
        return tuple(
            LeafReport(path, leaf.codec, leaf.nbytes, wire_bytes)
            for path, leaf, wire_bytes in zip(
                self._manifest.paths, self._manifest.leaves, self._by_leaf, strict=True
            )
        )


def _bytes_of(array: Array) -> memoryview:
    # Not memoryview(array).cast("B"): Python knows no format for ml_dtypes' types.
    return array.reshape(-1).view(np.uint8).data
