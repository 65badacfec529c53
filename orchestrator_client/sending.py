"""Bulk data beside the conversation about it: one micro-batch at a time on the wire, stoppable at any moment."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import zmq

from forebay.sockets import ClientKeys, tell
from forebay.wire import BrokenError, ClosedError, Event, Granted, Limits, SettingError, TreeRegistry, flatten

from .chunk_sender import ChunkSender, StopSignal
from .closing import in_own_thread, outlast
from .codec_choice import choose_codecs, needs_samples
from .data_endpoint import Target, check_proof
from .data_look import why_nothing_arrives
from .pace import Pace
from .payload import Payload, WireBytes
from .server_kind import ServerKind
from .settings import load_orchestrator_settings
from .standstill import Standstill, Why

log = logging.getLogger("forebay.client")


class Wire:
    """The client's way for bulk data, which its stage calls take in turns.

    It has a context of its own, so that no control message waits for ZeroMQ's threads.

    Args:
        kind: Of the server.
        endpoint: Where the server is dialled, which says where its data endpoint is and what guards that.
        send_chunks: Chunks that are buffered on their way out, on each connection.
        connections: To make, with one of ZeroMQ's threads for each; None for the setting.
        codec: `auto` or one for all leaves; None for the setting.
        least_data_protection: The least that must guard what is sent, at tcp; None for the setting.
        pace: A rate to keep to; others may share it.
        keys: Used where the server's data endpoint is encrypted.

    Raises:
        SettingError: A value is wrong, given or from the environment; or something has to guard the data, and a
            server over tcp without keys could just say that it does.
    """

    def __init__(
        self,
        kind: ServerKind,
        endpoint: str,
        *,
        send_chunks: int,
        connections: int | None,
        codec: str | None,
        least_data_protection: str | None,
        pace: Pace | None,
        keys: ClientKeys | None = None,
    ) -> None:
        given = {"connections": connections, "codec": codec, "least_data_protection": least_data_protection}
        settings = load_orchestrator_settings(given)
        check_proof(kind, endpoint, keys, settings.least_data_protection)
        self.kind = kind
        self.turn = asyncio.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._codec = settings.codec
        self._keys = keys
        self._send_chunks = send_chunks
        self._connections = settings.connections
        self._pace = pace
        self._least_protection = settings.least_data_protection
        self._admitted: Target | None = None
        self._closed = False
        self._sender: ChunkSender | None = None

    @property
    def is_paced(self) -> bool:
        """Whether all that leaves has to keep to a rate."""
        return self._pace is not None

    async def payload(self, tree: Any, *, registry: TreeRegistry, limits: Limits) -> Payload:
        """Prepares a tree to be sent; copies nothing of it but strided and byte-swapped arrays.

        Raises:
            TreeError: It cannot travel, or is larger than the limits say.
        """
        flat = flatten(tree, registry=registry, limits=limits)
        rate = None if self._sender is None else self._sender.link_bytes_per_s
        if not needs_samples(flat.arrays, self._codec, rate):
            return Payload.of(flat, limits, choose_codecs(flat.arrays, self._codec, rate))
        choices = await in_own_thread(choose_codecs, flat.arrays, self._codec, rate)
        return Payload.of(flat, limits, choices)

    def admit(self, target: Target) -> None:
        """Checks what guards a data endpoint, and tells it once in the log.

        Raises:
            SettingError: It is less than this client insists on; nothing is sent there.
        """
        if target != self._admitted:
            target.check(self._least_protection)
            self._admitted = target
            tell(log, logging.INFO, Event.DATA_ENDPOINT, address=target.endpoint, guard=target.guard)

    def sender(self, target: Target) -> ChunkSender:
        """Returns the sender to a data endpoint; a daemon that was restarted may have another. Needs the turn.

        One that was refused, or given up, is not used again: the key may be known by now.

        Raises:
            ClosedError: The client was closed meanwhile.
            SettingError: The endpoint is encrypted, and this client has no keys; or it is not guarded well enough.
        """
        if self._closed:
            raise ClosedError("the staging client is closed", remedy="use it inside its async with block")
        self.admit(target)
        if target.is_encrypted and self._keys is None:
            raise SettingError(
                f"the data endpoint {target.endpoint} is encrypted, and this client has no keys",
                remedy="set client_key_file and server_key_file",
            )
        if self._sender is None or self._sender.target != target or not self._sender.is_of_use:
            if self._sender is not None:
                self._sender.close()
            self._context = self._context or zmq.Context(self._connections)
            self._sender = ChunkSender(
                self._context,
                target,
                self.kind,
                keys=self._keys,
                send_chunks=self._send_chunks,
                connections=self._connections,
                pace=self._pace,
            )
        return self._sender

    async def why_nothing_arrives(self, target: Target) -> Why:
        """Looks at a data endpoint, on a thread of its own."""
        return await in_own_thread(why_nothing_arrives, target, self.kind, self._keys)

    async def close(self) -> None:
        """Closes the connections once whoever has the turn is done."""
        async with self.turn:
            self._closed = True
            if self._sender is not None:
                self._sender.close()
                self._sender = None
            if self._context is not None:
                self._context.term()


class Sending:
    """The sending of one micro-batch; an async context manager that stops it at its end.

    Args:
        wire: The client's data connection.
        payload: What to send.
        target: Returns where chunks go now.
        standstill: Tells when nothing arrives any more.

    Attributes:
        payload_bytes: Bytes of all leaves.
        wire_bytes: What has left of each; it changes until the sending is over.
    """

    def __init__(self, wire: Wire, payload: Payload, target: Callable[[], Target], standstill: Standstill) -> None:
        self._wire = wire
        self._payload: Payload | None = payload
        self.payload_bytes = payload.manifest.payload_bytes
        self.wire_bytes = WireBytes(payload)
        self._target = target
        self._standstill = standstill
        self._sender: ChunkSender | None = None
        self._grant: Granted | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: StopSignal | None = None
        self._has_turn = False

    async def follow(self, grant: Granted) -> None:
        """Starts to send, or sends again, if the grant calls for it.

        A grant that only repeats the last one is a report of progress: while bytes still arrive, what seems
        missing is on its way.

        Raises:
            BrokenError: Nothing of what is sent has arrived for too long; the message says why, as far as a look
                at the data endpoint tells.
        """
        await self._check_arrivals(grant)
        before, self._grant = self._grant, grant
        is_repeat = before is not None and _identity(before) == _identity(grant)
        if is_repeat and (self._is_running() or _received(before) < grant.received_bytes):
            return
        await self._end()
        if grant.missing and self._payload is not None:
            self._stop = StopSignal()
            sending = self._send(self._payload, grant, self._stop)
            self._task = asyncio.create_task(sending, name="forebay sending")

    async def _check_arrivals(self, grant: Granted) -> None:
        has_connected = self._sender is not None and self._sender.has_connected
        still = self._standstill
        is_due = still.heard(
            grant.received_bytes, time.monotonic(), is_sent=self._is_sent(), has_connected=has_connected
        )
        if not is_due:
            return
        target = self._target()
        why = await self._wire.why_nothing_arrives(target)
        if still.is_over(why):
            if self._sender is not None:
                self._sender.is_given_up = True
            kind = self._wire.kind
            raise BrokenError(
                f"nothing that is sent to {kind.data_setting} {target.endpoint} of the {kind.name} has arrived for"
                f" {still.seconds:.0f} s ({grant.received_bytes} of {self.payload_bytes} bytes had before)"
                + (why.words and f": {why.words}"),
                remedy=why.remedy,
            )

    def _is_sent(self) -> bool:
        """Whether what was granted is on its way, or said to be; not while a turn or a rate keeps it back."""
        if self._task is None or self._sender is None:
            return False
        return self._task.done() or (self._has_turn and not self._sender.is_held_back)

    def _is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _send(self, payload: Payload, grant: Granted, stop: StopSignal) -> None:
        async with self._wire.turn:
            self._has_turn = True
            try:
                self._sender = sender = self._wire.sender(self._target())
                await in_own_thread(sender.send, payload, grant, stop, self.wire_bytes)
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
