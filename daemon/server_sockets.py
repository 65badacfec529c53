"""A daemon's sockets: one for orchestrators and inspectors, one for trainers, and what receives chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

import zmq

from forebay.sockets import (
    BulkReceiver,
    Endpoint,
    Gate,
    ServerKeys,
    control_frame_limit,
    fitting_connections,
)
from forebay.sockets.connections import connections_within
from forebay.wire import TRUSTED, Arrivals, ChunkHeader, Client, DataProtection, Incoming, Peer

from .actions import Address
from .settings import Settings

_ENDPOINTS: Final = 3
_OTHERS: Final = 1
"""The lock of each trainer is watched through a descriptor."""


def connections_of_daemon(descriptors: int) -> int:
    """Returns how many connections each endpoint of a daemon can have with so many descriptors."""
    return connections_within(descriptors, endpoints=_ENDPOINTS, others=_OTHERS)


class Headcount(NamedTuple):
    """The connections of one endpoint, and how many were refused because there were too many."""

    endpoint: str
    connections: int
    refused: int


class ServerSockets:
    """The sockets of one daemon; for its loop alone.

    Args:
        settings: Where they are bound, and what bounds what comes by them.
        me: This daemon, for whoever finds an address taken.
        keys: Guard tcp addresses; None for nothing.
        gid: A group that may use ipc addresses too; None for this user alone.
        incoming: See `BulkReceiver`.
        target: See `BulkReceiver`.
        complete: See `BulkReceiver`.
        failed: See `BulkReceiver`.

    Attributes:
        control: A ROUTER for orchestrators and inspectors.
        trainer: A ROUTER for trainers.
        data: Receives chunks.

    Raises:
        HeldError: Another process has an address.
        HostError: An address cannot be had; nothing stays bound.
        SettingError: An address is none.
    """

    def __init__(
        self,
        settings: Settings,
        me: Peer,
        *,
        keys: ServerKeys | None,
        gid: int | None,
        incoming: Incoming,
        target: Callable[[ChunkHeader], memoryview | None],
        complete: Callable[[Arrivals], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._settings, self._me, self._keys, self._gid = settings, me, keys, gid
        self._faults = incoming.peer_faults
        self._max_connections = fitting_connections(
            settings.max_connections, setting="max_connections", endpoints=_ENDPOINTS, others=_OTHERS
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with contextlib.ExitStack() as undo:
            undo.callback(self._context.term)
            self._gate = None if keys is None else Gate(self._context, keys, self._faults)
            undo.callback(self._close_gate)
            self.control = self._bind("control_endpoint")
            undo.callback(self.control.close, linger_ms=0)
            self.trainer = self._bind("trainer_endpoint")
            undo.callback(self.trainer.close, linger_ms=0)
            self.data = self._receiver(incoming, target, complete, failed)
            undo.pop_all()

    def _bind(self, name: str) -> Endpoint:
        settings = self._settings
        return Endpoint(
            self._context,
            zmq.ROUTER,
            getattr(settings, name),
            setting=name,
            peer=self._me,
            max_frame_bytes=control_frame_limit(settings.max_manifest_bytes + settings.max_eager_bytes),
            max_connections=self._max_connections,
            receive_high_water=settings.control_messages,
            keys=self._keys,
            gid=self._gid,
            faults=self._faults,
        )

    def _receiver(
        self,
        incoming: Incoming,
        target: Callable[[ChunkHeader], memoryview | None],
        complete: Callable[[Arrivals], None],
        failed: Callable[[BaseException], None],
    ) -> BulkReceiver:
        settings = self._settings
        return BulkReceiver(
            settings.data_endpoint,
            setting="data_endpoint",
            peer=self._me,
            chunk_bytes=settings.chunk_bytes,
            receive_chunks=settings.receive_chunks,
            incoming=incoming,
            target=target,
            complete=complete,
            failed=failed,
            threads=settings.receive_threads,
            io_threads=settings.io_threads,
            max_connections=self._max_connections,
            keys=self._keys if settings.data_protection == DataProtection.ENCRYPTED else None,
            gid=self._gid,
        )

    def client_of(self, sender: Address) -> Client:
        """Returns who is behind a connection to `control`, and what they may do."""
        if self._keys is None or not self.control.is_guarded:
            return TRUSTED
        return self._keys.authorised.client_of(sender.user)

    def headcounts(self) -> tuple[Headcount, ...]:
        """Returns how many are connected."""
        loops = {"control": self.control.connections, "trainer": self.trainer.connections}
        counted = [Headcount(name, len(count), count.refused_count) for name, count in loops.items()]
        return (*counted, Headcount("data", self.data.connection_count, self.data.refused_count))

    def close(self, *, linger_ms: int) -> None:
        """Closes them; what was sent last gets this long to leave."""
        self.data.close()
        self.control.close(linger_ms=linger_ms)
        self.trainer.close(linger_ms=linger_ms)
        self._close_gate()
        self._context.term()

    def _close_gate(self) -> None:
        if self._gate is not None:
            self._gate.close()
