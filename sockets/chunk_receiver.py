"""Bulk data off the wire, straight to where it belongs."""

from __future__ import annotations

from typing import Protocol

import zmq

from forebay.wire import ChunkFault, ChunkHeader, ProtocolError, chunk_checksum

_CHUNKS_PER_TURN = 32


class Chunks(Protocol):
    """Whoever knows which chunks are wanted, and where their bytes belong."""

    def fault(self, header: ChunkHeader) -> ChunkFault | None:
        """Tells what is wrong with a chunk before its bytes are touched, or None."""

    def target(self, header: ChunkHeader) -> memoryview:
        """Returns the memory that a wanted chunk's bytes go to."""

    def filled(self, header: ChunkHeader) -> None:
        """A chunk's bytes lie there, and its checksum was right."""

    def thrown_away(self, fault: ChunkFault) -> None:
        """A chunk did not count."""


class ChunkReceiver:
    """Receives chunks and writes the wanted ones to their places.

    Args:
        socket: A PULL socket.
        chunks: Knows them.
    """

    def __init__(self, socket: zmq.Socket[bytes], chunks: Chunks) -> None:
        self._socket = socket
        self._chunks = chunks

    def receive(self) -> None:
        """Takes what has arrived, up to one turn's share, so that control messages never wait long."""
        for _ in range(_CHUNKS_PER_TURN):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            fault = self._receive_one(frame)
            if fault is not None:
                self._chunks.thrown_away(fault)

    def _receive_one(self, frame: bytes) -> ChunkFault | None:
        try:
            header = ChunkHeader.unpack(frame)
        except ProtocolError:
            self._discard_rest()
            return ChunkFault.MALFORMED
        fault = self._chunks.fault(header)
        if fault is not None or not self._socket.rcvmore:
            self._discard_rest()
            return fault or ChunkFault.MALFORMED
        # Written before it is checked: the span counts as missing until the checksum was right.
        target = self._chunks.target(header)
        received = self._socket.recv_into(target)
        if received != header.length or self._socket.rcvmore:
            self._discard_rest()
            return ChunkFault.WRONG_LENGTH
        if chunk_checksum(target, header.offset) != header.checksum:
            return ChunkFault.WRONG_CHECKSUM
        self._chunks.filled(header)
        return None

    def _discard_rest(self) -> None:
        while self._socket.rcvmore:
            self._socket.recv_into(bytearray())
