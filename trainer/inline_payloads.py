"""The memory that payloads of calls arrive in."""

from __future__ import annotations

import time
from typing import Any

from forebay.wire import (
    ChunkHeader,
    TreeRegistry,
    unflatten,
)

from .call_books import CallBooks
from .call_record import CallRecord
from .host_memory import Bytes, aligned_memory


class InlinePayloads:
    """Memory for payloads, and the places of their chunks in it.

    Each payload gets memory of its own that is never used again: an engine may keep views of it.

    Args:
        books: Decide which payloads are wanted.
    """

    def __init__(self, books: CallBooks) -> None:
        self._books = books
        self._memory: dict[int, Bytes] = {}

    def make_room(self, call: CallRecord) -> None:
        """Takes memory for a call's payload, or has the call refused."""
        try:
            memory = aligned_memory(call.body_bytes)
        except MemoryError as error:
            self._books.cannot_receive(call, f"the worker's host has no memory: {error}", time.monotonic())
            return
        self._memory[call.payload_number] = memory
        self._books.receives(call, time.monotonic())

    def let_go(self, payload_number: int) -> None:
        """Forgets a payload, whether it was taken or not."""
        self._memory.pop(payload_number, None)

    def take(self, call: CallRecord, registry: TreeRegistry) -> Any:
        """Returns a call's payload as a tree of numpy views, and forgets it here.

        Raises:
            TreeError: A class is not registered here, or has other fields here.
        """
        assert call.manifest is not None
        memory = self._memory.pop(call.payload_number)
        return unflatten(call.manifest.structure, call.manifest.views(memory.data), registry=registry)

    def target(self, header: ChunkHeader) -> memoryview | None:
        """Returns a chunk's place, or None if its payload was let go; called on the threads that receive."""
        memory = self._memory.get(header.slot)
        return None if memory is None else memory[header.offset : header.offset + header.length].data
