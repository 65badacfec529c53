"""From a lent slot to a tree of read-only numpy views."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forebay.shm import SlotView
from forebay.wire import Array, HostError, Lend, Limits, Manifest, decode_manifest, dtype_of

from .host_tree import HostTree


class SlotReader:
    """Reads lent slots; keeps their mappings from one loan to the next.

    Args:
        pool: The pool's folder.
        limits: The daemon's limits, for the manifests; a daemon that was restarted may have others.
    """

    def __init__(self, pool: Path, limits: Limits) -> None:
        self.limits = limits
        self._pool = pool
        self._slots: dict[int, SlotView] = {}

    def read(self, lend: Lend) -> tuple[str, HostTree]:
        """Returns the attempt that filled a lent slot, and what it holds; copies nothing.

        Raises:
            HostError: The slot file cannot be mapped, or does not hold what was lent.
            TreeError: The manifest cannot be read.
        """
        slot = self._slots.get(lend.slot)
        if slot is None or slot.file_bytes < lend.file_bytes:
            slot = self._slots[lend.slot] = SlotView(self._pool, lend.slot)
        envelope, body = slot.read(lend.generation)
        if envelope.key != lend.key:
            raise HostError(f"slot {lend.slot} holds another micro-batch", got=envelope.key, limit=lend.key)
        manifest = decode_manifest(envelope.manifest, self.limits)
        views = _views(manifest, body, self.limits)
        return envelope.attempt, HostTree(manifest.structure, manifest.paths, views)


def _views(manifest: Manifest, body: memoryview, limits: Limits) -> tuple[Array, ...]:
    offsets = manifest.layout(limits.chunk_bytes).offsets
    return tuple(
        np.ndarray(leaf.shape, dtype_of(leaf.dtype, path), buffer=body, offset=offset)
        if leaf.nbytes
        else np.empty(leaf.shape, dtype_of(leaf.dtype, path))
        for leaf, path, offset in zip(manifest.leaves, manifest.paths, offsets, strict=True)
    )
