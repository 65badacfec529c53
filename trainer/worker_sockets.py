"""A worker's sockets: calls and their answers, and the chunks of inline payloads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq

from forebay.sockets import Endpoint, control_frame_limit
from forebay.wire import Goodbye, Limits, Message, Peer, encode_message

from .call_record import Address
from .settings import TrainerSettings

_MESSAGES_PER_TURN = 64
_LINGER_MS = 2_000
_MAX_PEERS = 4096
_PARTS_OF_A_CALL = 3
"""The payload's manifest, the options' manifest and the options' bytes; none is larger than a manifest may be."""


class WorkerSockets:
    """The sockets of one worker; for the thread that serves, or closes, alone.

    Args:
        settings: Where they are bound.
        limits: Upper bounds on what comes by them.
        me: This process, for whoever finds an address taken.

    Attributes:
        control: A ROUTER for calls.
        data: A PULL socket for chunks.

    Raises:
        HeldError: Another process has an address.
        HostError: An address cannot be had.
        SettingError: An address is none.
    """

    def __init__(self, settings: TrainerSettings, limits: Limits, me: Peer) -> None:
        self._peers: dict[Address, None] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with contextlib.ExitStack() as undo:
            undo.callback(self._context.term)
            self.control = Endpoint(
                self._context,
                zmq.ROUTER,
                settings.worker_endpoint,
                setting="worker_endpoint",
                peer=me,
                max_frame_bytes=control_frame_limit(_PARTS_OF_A_CALL * limits.max_manifest_bytes),
            )
            undo.callback(self.control.close, linger_ms=0)
            self.data = Endpoint(
                self._context,
                zmq.PULL,
                settings.worker_data_endpoint,
                setting="worker_data_endpoint",
                peer=me,
                max_frame_bytes=limits.chunk_bytes,
                receive_high_water=8,
            )
            undo.pop_all()

    def received(self) -> Iterator[tuple[Address, list[bytes]]]:
        """Yields who sent which frames, up to one turn's share."""
        for _ in range(_MESSAGES_PER_TURN):
            try:
                sender, *frames = self.control.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield sender, frames

    def send(self, to: Address, message: Message) -> None:
        """Sends a message, if its receiver takes it now: whoever is gone asks again when it is back."""
        with contextlib.suppress(zmq.ZMQError):
            self.control.socket.send_multipart([to, encode_message(message)], zmq.NOBLOCK)

    def knows(self, peer: Address) -> None:
        """Notes a peer, to say goodbye to in the end."""
        self._peers[peer] = None
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]

    def close(self) -> None:
        """Says goodbye, and closes them; what was sent last gets two seconds to leave."""
        for peer in self._peers:
            self.send(peer, Goodbye(kept=False))
        self.data.close(linger_ms=0)
        self.control.close(linger_ms=_LINGER_MS)
        self._context.term()
