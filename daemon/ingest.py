"""Bulk data off the wire, straight into slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import zmq

from forebay.shm import SlotFile
from forebay.wire import ChunkHeader, ProtocolError, chunk_checksum

from .actions import Action
from .ledger import Ledger
from .transfer import ChunkFault

_CHUNKS_PER_TURN = 32


class Ingest:
    """Receives chunks and writes the good ones to their slots.

    Args:
        socket: The PULL socket of the data endpoint.
        ledger: Decides which chunks are wanted.
        files: The slot files in order.
        perform: Carries out what the ledger decides.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        ledger: Ledger,
        files: Sequence[SlotFile],
        perform: Callable[[Sequence[Action]], None],
    ) -> None:
        self._socket = socket
        self._ledger = ledger
        self._files = files
        self._perform = perform

    def receive(self) -> None:
        """Takes what has arrived, up to one turn's share, so that control messages never wait long."""
        for _ in range(_CHUNKS_PER_TURN):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            fault = self._receive_one(frame)
            if fault is not None:
                self._perform(self._ledger.chunk_thrown_away(fault))

    def _receive_one(self, frame: bytes) -> ChunkFault | None:
        try:
            header = ChunkHeader.unpack(frame)
        except ProtocolError:
            self._discard_rest()
            return ChunkFault.MALFORMED
        fault = self._ledger.chunk(header)
        if fault is not None or not self._socket.rcvmore:
            self._discard_rest()
            return fault or ChunkFault.MALFORMED
        # Written before it is checked: the span counts as missing until the checksum was right.
        target = self._files[header.slot].body(header.offset, header.length)
        received = self._socket.recv_into(target)
        if received != header.length or self._socket.rcvmore:
            self._discard_rest()
            return ChunkFault.WRONG_LENGTH
        if chunk_checksum(target, header.offset) != header.checksum:
            return ChunkFault.WRONG_CHECKSUM
        self._perform(self._ledger.filled(header, time.monotonic()))
        return None

    def _discard_rest(self) -> None:
        while self._socket.rcvmore:
            self._socket.recv_into(bytearray())
