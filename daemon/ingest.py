"""Bulk data off the wire, straight into slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from forebay.shm import SlotFile
from forebay.wire import ChunkFault, ChunkHeader

from .actions import Action
from .ledger import Ledger


class SlotChunks:
    """Has the ledger decide which chunks are wanted, and finds their places in the slot files.

    Args:
        ledger: Decides.
        files: The slot files in order.
        perform: Carries out what the ledger decides.
    """

    def __init__(
        self, ledger: Ledger, files: Sequence[SlotFile], perform: Callable[[Sequence[Action]], None]
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._perform = perform

    def fault(self, header: ChunkHeader) -> ChunkFault | None:
        """See `Chunks`."""
        return self._ledger.chunk(header)

    def target(self, header: ChunkHeader) -> memoryview:
        """See `Chunks`."""
        return self._files[header.slot].body(header.offset, header.length)

    def filled(self, header: ChunkHeader) -> None:
        """See `Chunks`."""
        self._perform(self._ledger.filled(header, time.monotonic()))

    def thrown_away(self, fault: ChunkFault) -> None:
        """See `Chunks`."""
        self._perform(self._ledger.chunk_thrown_away(fault))
