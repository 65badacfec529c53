"""Bulk data from the caller's arrays to the daemon, without a copy."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Final

import zmq

from forebay.sockets import ClientKeys, ping
from forebay.wire import Granted, RefusalCode, RefusedError

from .chunk_encoder import Chunk, ChunkEncoder
from .data_endpoint import Target
from .handshakes import REFUSALS, Handshakes
from .link_rate import LinkRate
from .pace import Pace
from .payload import Payload, WireBytes
from .server_kind import ServerKind

_LONGEST_POLL_S: Final = 3600.0


class ChunkSender:
    """Sends chunks from a thread, until done or told to stop.

    Not for two threads at once; the client's lock sees to that.

    Args:
        context: A ZeroMQ context.
        target: The server's data endpoint.
        kind: Of the server.
        send_chunks: Chunks that ZeroMQ buffers at most, on each connection.
        connections: To make to it; chunks go to whichever has room.
        pace: A rate to keep to; others may share it. The bytes of chunks count, their headers do not.
        keys: Used if the endpoint is encrypted.

    Attributes:
        has_connected: Whether anything has ever left.
        is_held_back: Whether it waits because of its rate.
        is_given_up: Set by whoever wants no more to do with its connections.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        target: Target,
        kind: ServerKind,
        *,
        send_chunks: int,
        connections: int = 1,
        pace: Pace | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        self.target = target
        self.has_connected = False
        self.is_held_back = False
        self.is_given_up = False
        self._pace = pace
        self._rate = LinkRate()
        self._encoder = ChunkEncoder(self._rate)
        self._socket = context.socket(zmq.PUSH)
        self._socket.sndhwm = send_chunks
        self._socket.linger = 0
        ping(self._socket)
        self._handshakes = Handshakes(
            self._socket, target.endpoint, kind, keys=keys, is_data=True, events=REFUSALS
        )
        # Chunks wait here, not in a pipe to nobody, while there is no connection.
        self._socket.immediate = True
        if keys is not None and target.is_encrypted:
            keys.use(self._socket, target.endpoint)
        for _ in range(connections):
            self._socket.connect(target.endpoint)

    @property
    def was_refused(self) -> bool:
        """Whether the server did not know this client's key; ZeroMQ does not dial again, a new sender does."""
        self._handshakes.take()
        return self._handshakes.was_refused

    @property
    def is_of_use(self) -> bool:
        """Whether it may carry another micro-batch."""
        return not (self.is_given_up or self.was_refused)

    @property
    def link_bytes_per_s(self) -> float | None:
        """What the link was seen to carry; None if that is not known yet."""
        return self._rate.bytes_per_s

    def send(self, payload: Payload, grant: Granted, stop: StopSignal, wire_bytes: WireBytes) -> None:
        """Sends what a grant says is missing.

        Returns early when stopped. Chunks that were handed over then may still leave; the daemon tells them
        by the grant's token and throws them away.

        Args:
            payload: What to send.
            grant: Slot, generation, token and missing spans.
            stop: Ends the sending from another thread.
            wire_bytes: Counts what leaves.

        Raises:
            ProtocolError: The grant does not fit the payload; nothing was sent.
            RefusedError: The server does not know this client's key; a new sender may ask again.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLOUT)
        poller.register(self._handshakes.monitor, zmq.POLLIN)
        poller.register(stop.fileno(), zmq.POLLIN)
        self._rate.begin()
        goes_on = False
        with contextlib.closing(self._encoder.chunks(payload, grant)) as chunks:
            for chunk in chunks:
                wait_s = self._pace_s(len(chunk.data), goes_on=goes_on)
                if wait_s > 0 and self._hold_back(wait_s, stop):
                    return
                waits = self._send_when_ready(chunk, poller, stop)
                if waits is None:
                    return
                nbytes = len(chunk.data)
                self._rate.sent(nbytes, has_waited=waits > 0 or wait_s > 0, now=time.monotonic())
                wire_bytes.sent(chunk.span, nbytes)
                goes_on = True

    def _pace_s(self, nbytes: int, *, goes_on: bool) -> float:
        return 0.0 if self._pace is None else self._pace.wait_s(nbytes, time.monotonic(), goes_on=goes_on)

    def _hold_back(self, wait_s: float, stop: StopSignal) -> bool:
        """Waits; returns whether it was told to stop meanwhile."""
        self.is_held_back = True
        try:
            return stop.wait_until(time.monotonic() + wait_s)
        finally:
            self.is_held_back = False

    def _send_when_ready(self, chunk: Chunk, poller: zmq.Poller, stop: StopSignal) -> int | None:
        """Hands a chunk over as soon as there is room.

        Returns:
            How often it waited for that; None if told to stop before.
        """
        waits = 0
        while not stop.is_set:
            try:
                self._socket.send(chunk.header, zmq.SNDMORE | zmq.NOBLOCK)
            except zmq.Again:
                poller.poll()
                self._check_admitted()
                waits += 1
                continue
            # ZeroMQ takes a message whole or not at all, so the second part never has to wait.
            self._socket.send(chunk.data, copy=False)
            self.has_connected = True
            return waits
        return None

    def _check_admitted(self) -> None:
        if self.was_refused:
            words = f"the data endpoint {self.target.endpoint} does not know this key; {self._handshakes.remedy}"
            raise RefusedError(RefusalCode.NOT_ALLOWED, words)

    def close(self) -> None:
        """Closes the connections; chunks that have not left are dropped."""
        self._handshakes.close()
        self._socket.close()
        self._encoder.close()


class StopSignal:
    """Ends a sending that another thread is in; wakes it where it waits.

    Attributes:
        is_set: Whether it was told to stop.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Returns the descriptor that is readable once it is set."""
        return self._fd

    def set(self) -> None:
        """Tells the sender to stop."""
        self.is_set = True
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
