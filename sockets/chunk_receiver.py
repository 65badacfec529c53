"""Bulk data off the wire, straight to where it belongs."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

from forebay.wire import (
    CODECS,
    RAW,
    Arrivals,
    ChunkFault,
    ChunkHeader,
    Incoming,
    ProtocolError,
    chunk_checksum,
    decode_chunk,
)


class ChunkReceiver:
    """Receives chunks and writes the wanted ones to their places; for one thread.

    Args:
        socket: A PULL socket.
        incoming: Knows which chunks are wanted.
        target: Returns the memory that a claimed chunk's decoded bytes go to; None if that has gone meanwhile.
        complete: Called when the last chunk of something lies in its place.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        incoming: Incoming,
        target: Callable[[ChunkHeader], memoryview | None],
        complete: Callable[[Arrivals], None],
    ) -> None:
        self._socket = socket
        self._incoming = incoming
        self._target = target
        self._complete = complete
        self._wire_bytes = 0

    def receive(self) -> None:
        """Waits for a chunk, and deals with it.

        Raises:
            zmq.ContextTerminated: While it waited.
        """
        frame = self._socket.recv()
        fault = self._deal_with(frame)
        if fault is not None:
            self._discard_rest()
            self._incoming.throw_away(fault)

    def _deal_with(self, frame: bytes) -> ChunkFault | None:
        try:
            header = ChunkHeader.unpack(frame)
        except ProtocolError:
            return ChunkFault.MALFORMED
        if not self._socket.rcvmore:
            return ChunkFault.MALFORMED
        arrivals = self._incoming.claim(header)
        if isinstance(arrivals, ChunkFault):
            return arrivals
        fault: ChunkFault | None = ChunkFault.MALFORMED
        try:
            fault = self._write(header)
        finally:
            is_complete = self._incoming.settle(arrivals, header, fault, time.monotonic(), self._wire_bytes)
        if is_complete:
            self._complete(arrivals)
        return fault

    def _write(self, header: ChunkHeader) -> ChunkFault | None:
        # Written before it is checked: the span counts as missing until the checksum was right.
        target = self._target(header)
        if target is None:
            return ChunkFault.NOT_GRANTED
        codec = CODECS[header.codec]
        fault = self._receive_raw(target) if codec == RAW else self._receive_encoded(codec, target)
        if fault is None and chunk_checksum(target, header.offset) != header.checksum:
            return ChunkFault.WRONG_CHECKSUM
        return fault

    def _receive_raw(self, target: memoryview) -> ChunkFault | None:
        received = self._wire_bytes = self._socket.recv_into(target)
        return ChunkFault.WRONG_LENGTH if received != target.nbytes or self._socket.rcvmore else None

    def _receive_encoded(self, codec: str, target: memoryview) -> ChunkFault | None:
        frame = self._socket.recv(copy=False)
        if self._socket.rcvmore:
            return ChunkFault.WRONG_LENGTH
        self._wire_bytes = frame.buffer.nbytes
        try:
            decode_chunk(codec, frame.buffer, target)
        except ProtocolError:
            return ChunkFault.DAMAGED
        return None

    def _discard_rest(self) -> None:
        while self._socket.rcvmore:
            self._socket.recv_into(bytearray())
