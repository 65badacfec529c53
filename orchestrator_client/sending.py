"""Bulk data beside the conversation about it: one micro-batch at a time on the wire, stoppable at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import zmq

from forebay.wire import ClosedError, Granted

from .chunk_sender import ChunkSender, Payload, StopSignal
from .closing import in_own_thread, outlast
from .pace import Pace


class Wire:
    """The client's one data connection, which its stage calls take in turns.

    Args:
        context: The ZeroMQ context.
        send_chunks: Chunks that are buffered on their way out.
        pace: A rate to keep to; others may share it.
    """

    def __init__(self, context: zmq.Context[Any], *, send_chunks: int, pace: Pace | None = None) -> None:
        self.turn = asyncio.Lock()
        self._context = context
        self._send_chunks = send_chunks
        self._pace = pace
        self._closed = False
        self._sender: ChunkSender | None = None

    def sender(self, endpoint: str) -> ChunkSender:
        """Returns the sender to an endpoint; a daemon that was restarted may have another. Needs the turn.

        Raises:
            ClosedError: The client was closed meanwhile.
        """
        if self._closed:
            raise ClosedError("the staging client is closed", remedy="use it inside its async with block")
        if self._sender is None or self._sender.endpoint != endpoint:
            if self._sender is not None:
                self._sender.close()
            self._sender = ChunkSender(self._context, endpoint, send_chunks=self._send_chunks, pace=self._pace)
        return self._sender

    async def close(self) -> None:
        """Closes the connection once whoever has the turn is done."""
        async with self.turn:
            self._closed = True
            if self._sender is not None:
                self._sender.close()
                self._sender = None


class Sending:
    """The sending of one micro-batch; an async context manager that stops it at its end.

    Args:
        wire: The client's data connection.
        payload: What to send.
        endpoint: Returns where chunks go now.
    """

    def __init__(self, wire: Wire, payload: Payload, endpoint: Callable[[], str]) -> None:
        self._wire = wire
        self._payload: Payload | None = payload
        self._endpoint = endpoint
        self._grant: Granted | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: StopSignal | None = None
        self._has_turn = False

    async def follow(self, grant: Granted) -> None:
        """Starts to send, or sends again, if the grant calls for it.

        A grant that only repeats the last one is a report of progress: while bytes still arrive, what seems
        missing is on its way.
        """
        before, self._grant = self._grant, grant
        is_repeat = before is not None and _identity(before) == _identity(grant)
        if is_repeat and (self._is_running() or _received(before) < grant.received_bytes):
            return
        await self._end()
        if grant.missing and self._payload is not None:
            self._stop = StopSignal()
            sending = self._send(self._payload, grant, self._stop)
            self._task = asyncio.create_task(sending, name="forebay sending")

    def _is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _send(self, payload: Payload, grant: Granted, stop: StopSignal) -> None:
        async with self._wire.turn:
            self._has_turn = True
            try:
                sender = self._wire.sender(self._endpoint())
                await in_own_thread(sender.send, payload, grant, stop)
            finally:
                self._has_turn = False

    async def _end(self) -> None:
        """Stops, and returns when the thread has let go of the socket and the caller's arrays."""
        if self._task is None or self._stop is None:
            return
        task, stop = self._task, self._stop
        self._task = self._stop = None
        stop.set()
        if not self._has_turn:
            task.cancel()
        try:
            if (cancelled := await outlast(task)) is not None:
                raise cancelled
        finally:
            stop.close()
        if not task.cancelled():
            task.result()

    @property
    def is_done(self) -> bool:
        """Whether the payload was let go."""
        return self._payload is None

    async def done(self) -> None:
        """Lets the payload go: all of it has arrived."""
        await self._end()
        self._payload = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()


def _identity(grant: Granted) -> tuple[int, int, int]:
    return grant.slot, grant.generation, grant.token


def _received(grant: Granted | None) -> int:
    return grant.received_bytes if grant is not None else 0
