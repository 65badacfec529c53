"""Bulk data from the caller's arrays to the daemon, without a copy."""

from __future__ import annotations

import dataclasses
import os
import select
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import zmq

from forebay.wire import (
    HEARTBEAT_MS,
    HEARTBEAT_TIMEOUT_MS,
    Array,
    BodyLayout,
    ChunkHeader,
    FlatTree,
    Granted,
    Manifest,
    Span,
    chunk_checksum,
)

from .pace import Pace

_LONGEST_POLL_S: Final = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Payload:
    """A micro-batch ready to be sent.

    Attributes:
        manifest: What it is.
        leaves: The bytes of each leaf, views of the caller's arrays.
    """

    manifest: Manifest
    leaves: tuple[memoryview, ...]

    @classmethod
    def of(cls, flat: FlatTree, manifest: Manifest) -> Payload:
        """Prepares a tree that was taken apart; copies nothing."""
        return cls(manifest, tuple(_bytes_of(array) for array in flat.arrays))

    def read(self, span: Span, layout: BodyLayout) -> memoryview:
        """Returns a span's bytes: a view of one leaf, or small leaves packed with zeroed gaps."""
        if span.leaf_count == 1:
            start = span.offset - layout.offsets[span.first_leaf]
            return self.leaves[span.first_leaf][start : start + span.length]
        packed = bytearray(span.length)
        for leaf in range(span.first_leaf, span.first_leaf + span.leaf_count):
            start = layout.offsets[leaf] - span.offset
            packed[start : start + len(self.leaves[leaf])] = self.leaves[leaf]
        return memoryview(packed)


class ChunkSender:
    """Sends chunks from a thread, until done or told to stop.

    Not for two threads at once; the client's lock sees to that.

    Args:
        context: The ZeroMQ context.
        endpoint: The daemon's data endpoint.
        send_chunks: Chunks that ZeroMQ buffers at most.
        pace: A rate to keep to; others may share it. The bytes of chunks count, their headers do not.
    """

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, *, send_chunks: int, pace: Pace | None = None
    ) -> None:
        self.endpoint = endpoint
        self._pace = pace
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        self._socket = plain.socket(zmq.PUSH)
        self._socket.sndhwm = send_chunks
        self._socket.linger = 0
        self._socket.heartbeat_ivl = HEARTBEAT_MS
        self._socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
        # Chunks wait here, not in a pipe to nobody, while there is no connection.
        self._socket.immediate = True
        self._socket.connect(endpoint)

    def send(self, payload: Payload, grant: Granted, stop: StopSignal) -> None:
        """Sends what a grant says is missing.

        Returns early when stopped. Chunks that were handed over then may still leave; the daemon tells them
        by the grant's token and throws them away.

        Args:
            payload: What to send.
            grant: Slot, generation, token and missing spans.
            stop: Ends the sending from another thread.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLOUT)
        poller.register(stop.fileno(), zmq.POLLIN)
        layout = payload.manifest.layout(grant.chunk_bytes)
        for number, index in enumerate(_indices(grant.missing)):
            span = layout.spans[index]
            data = payload.read(span, layout)
            header = _header_of(data, grant, index, span.offset)
            if not self._keep_pace(span.length, stop, goes_on=number > 0):
                return
            if not self._send_when_ready(header, data, poller, stop):
                return

    def _keep_pace(self, nbytes: int, stop: StopSignal, *, goes_on: bool) -> bool:
        """Waits until so many bytes may leave; returns False if told to stop before."""
        if self._pace is None:
            return True
        now = time.monotonic()
        return not stop.wait_until(now + self._pace.wait_s(nbytes, now, goes_on=goes_on))

    def _send_when_ready(self, header: bytes, data: memoryview, poller: zmq.Poller, stop: StopSignal) -> bool:
        """Hands a chunk over as soon as there is room; returns False if told to stop before."""
        while True:
            if stop.fileno() in {source for source, _ in poller.poll()}:
                return False
            try:
                self._socket.send(header, zmq.SNDMORE | zmq.NOBLOCK)
            except zmq.Again:  # the connection went between the poll and now
                continue
            # ZeroMQ takes a message whole or not at all, so the second part never has to wait.
            self._socket.send(data, copy=False)
            return True

    def close(self) -> None:
        """Closes the connection; chunks that have not left are dropped."""
        self._socket.close()


class StopSignal:
    """Ends a sending that another thread is in; wakes it where it waits."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Returns the descriptor that is readable once it is set."""
        return self._fd

    def set(self) -> None:
        """Tells the sender to stop."""
        os.eventfd_write(self._fd, 1)

    def wait_until(self, deadline: float) -> bool:
        """Waits for it to be set; returns whether it was before the monotonic second `deadline`."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0:
            # poll rounds milliseconds up, and takes no more of them than a C int holds.
            if poller.poll(1000 * min(left_s, _LONGEST_POLL_S)):
                return True
        return False

    def close(self) -> None:
        """Frees the descriptor; only after the sender returned."""
        os.close(self._fd)


def _header_of(data: memoryview, grant: Granted, span: int, offset: int) -> bytes:
    header = ChunkHeader(
        slot=grant.slot,
        span=span,
        length=len(data),
        generation=grant.generation,
        token=grant.token,
        offset=offset,
        checksum=chunk_checksum(data, offset),
    )
    return header.pack()


def _indices(runs: Sequence[tuple[int, int]]) -> Iterable[int]:
    return (index for first, count in runs for index in range(first, first + count))


def _bytes_of(array: Array) -> memoryview:
    # Not memoryview(array).cast("B"): Python knows no format for ml_dtypes' types.
    return array.reshape(-1).view(np.uint8).data
