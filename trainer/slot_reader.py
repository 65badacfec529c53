"""From a lent slot to a tree of read-only numpy views."""

from __future__ import annotations

from pathlib import Path

from forebay.shm import SlotView
from forebay.wire import HostError, Lend, Limits, decode_manifest

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
        return envelope.attempt, HostTree(manifest.structure, manifest.paths, manifest.views(body))
