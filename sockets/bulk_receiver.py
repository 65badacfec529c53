"""A data endpoint and the threads that receive from it, beside the loop that decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from forebay.wire import Arrivals, ChunkHeader, Incoming, LocalError, Peer

from .chunk_receiver import ChunkReceiver
from .endpoint import Endpoint
from .gate import Gate, ServerKeys

_CLOSE_S: Final = 10.0
_INNER: Final = "inproc://chunks"
_CHUNK_FRAMES: Final = 2
_INNER_CHUNKS: Final = 1
"""Chunks that wait for each of several threads: one to go on with."""


class BulkReceiver:
    """Receives chunks on threads of its own, so that no control message waits behind bulk data.

    With one thread, that one owns the socket. With several, one more deals messages out to them, without a copy.
    A chunk that comes twice at once may be thrown away while the first of the two turns out to be damaged; it is
    then sent again like any that is missing.

    Args:
        address: Where the PULL socket is bound.
        setting: Name of the address's setting, for errors.
        peer: This process, for whoever finds the address taken.
        chunk_bytes: Larger frames cut their connection.
        receive_chunks: Chunks buffered per sender.
        threads: That receive, check and decode.
        io_threads: ZeroMQ's own, which read from the connections.
        max_connections: At which no more are taken.
        keys: Guard and encrypt a tcp address; None where the tokens of grants are enough.
        gid: See `Endpoint`.
        incoming: Knows which chunks are wanted; counts those that are not, and handshakes that fail.
        target: Returns the memory for a claimed chunk, or None if that has gone; called on these threads.
        complete: Called on these threads when the last chunk of something lies in its place.
        failed: Called on these threads with an error that ended one: a bug, and chunks are received no more.

    Attributes:
        address: Where it is bound.

    Raises:
        HeldError: Another process has the address.
        HostError: The address cannot be had.
        SettingError: The address is none.
    """

    def __init__(
        self,
        address: str,
        *,
        setting: str,
        peer: Peer,
        chunk_bytes: int,
        receive_chunks: int,
        incoming: Incoming,
        target: Callable[[ChunkHeader], memoryview | None],
        complete: Callable[[Arrivals], None],
        failed: Callable[[BaseException], None],
        threads: int = 1,
        io_threads: int = 1,
        max_connections: int = 1024,
        keys: ServerKeys | None = None,
        gid: int | None = None,
    ) -> None:
        self._failed = failed
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._gate: Gate | None = None
        try:
            # The context is its own, so it needs a gate of its own as well.
            self._gate = None if keys is None else Gate(self._context, keys, incoming.peer_faults)
            endpoint = Endpoint(
                self._context,
                zmq.PULL,
                address,
                setting=setting,
                peer=peer,
                max_frame_bytes=chunk_bytes,
                receive_high_water=receive_chunks,
                max_connections=max_connections,
                keys=keys,
                gid=gid,
                faults=incoming.peer_faults,
            )
        except BaseException:
            self._close_gate()
            self._context.term()
            raise
        self.address = endpoint.address
        self._connections = endpoint.connections
        self._threads: list[threading.Thread] = []

        receivers = [endpoint.socket] if threads == 1 else self._inner_sockets(endpoint, threads)
        for socket in receivers:
            receiver = ChunkReceiver(socket, incoming, target, complete)
            if threads == 1:
                self._start("chunks", (endpoint.wait, receiver.receive), lambda: endpoint.close(linger_ms=0))
            else:
                self._start("chunks", (receiver.receive,), socket.close)

    def _inner_sockets(self, endpoint: Endpoint, count: int) -> list[zmq.Socket[bytes]]:
        """Starts the thread that deals out what comes; returns where it does."""
        inner = self._inner(zmq.PUSH)
        inner.bind(_INNER)
        sockets = [self._inner(zmq.PULL) for _ in range(count)]
        for socket in sockets:
            socket.connect(_INNER)

        def deal_out() -> None:
            frames = endpoint.socket.recv_multipart(copy=False)
            # A chunk has two; of more, those that are enough to see that it is none.
            inner.send_multipart(frames[: _CHUNK_FRAMES + 1], copy=False)

        def close_both() -> None:
            inner.close()
            endpoint.close(linger_ms=0)

        self._start("chunks-dealer", (endpoint.wait, deal_out), close_both)
        return sockets

    def __repr__(self) -> str:
        return f"BulkReceiver({self.address!r}, {len(self._threads)} threads)"

    @property
    def connection_count(self) -> int:
        """Connections that there are; true a moment ago."""
        return len(self._connections)

    @property
    def refused_count(self) -> int:
        """See `Connections`; true a moment ago."""
        return self._connections.refused_count

    def _inner(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = _INNER_CHUNKS
        return socket

    def _start(self, name: str, steps: Sequence[Callable[[], object]], close: Callable[[], None]) -> None:
        """Starts a thread that takes turns until the context ends; it closes the socket that it uses."""

        def run() -> None:
            try:
                while True:
                    for step in steps:
                        step()
            except zmq.ContextTerminated:
                pass
            except BaseException as error:  # noqa: BLE001 - a thread that ends in silence would be a hang
                self._failed(error)
            finally:
                close()

        thread = threading.Thread(target=run, name=f"forebay-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _close_gate(self) -> None:
        if self._gate is not None:
            self._gate.close()

    def close(self) -> None:
        """Ends the threads and frees the address; a second call does nothing.

        Raises:
            LocalError: A thread is stuck.
        """
        self._close_gate()
        # It wakes the threads, and returns when the last of them has closed its socket.
        closer = threading.Thread(target=self._context.term, name="forebay-chunks-close", daemon=True)
        closer.start()
        for thread in (*self._threads, closer):
            thread.join(_CLOSE_S)
            if thread.is_alive():
                raise LocalError(f"waited {_CLOSE_S:g} s for the thread {thread.name} of {self.address} to end")
