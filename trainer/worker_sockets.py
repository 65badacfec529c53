"""A worker's sockets: calls and their answers, and what receives the chunks of inline payloads."""

from __future__ import annotations

import contextlib
import time

import zmq

from forebay.shm import group_id
from forebay.sockets import (
    BulkReceiver,
    Endpoint,
    Gate,
    Mailbox,
    PeerAnswers,
    control_frame_limit,
    fitting_connections,
    load_server_keys,
)
from forebay.wire import (
    TRUSTED,
    Arrivals,
    Client,
    DataProtection,
    Goodbye,
    Limits,
    LocalError,
    Message,
    Peer,
    encode_message,
)

from .call_books import CallBooks
from .call_record import Address
from .inline_payloads import InlinePayloads
from .settings import TrainerSettings

_LINGER_MS = 2_000
_RECEIVE_CHUNKS = 4
_MAX_PEERS = 4096
_ANSWER_MESSAGES = 32
"""For a peer that reads none: an answer may be as large as what a method returns."""

_PARTS_OF_A_CALL = 3
"""The payload's manifest, the options' manifest and the options' bytes; none is larger than a manifest may be."""


class WorkerSockets:
    """The sockets of one worker; for the thread that serves, or closes, alone.

    Args:
        settings: Where they are bound.
        limits: Upper bounds on what comes by them.
        me: This process, for whoever finds an address taken.
        books: Hear, on the loop, of payloads that have arrived.
        payloads: Know their places.
        mailbox: The way into the loop.

    Attributes:
        control: A ROUTER for calls.
        data: Receives chunks.

    Raises:
        HeldError: Another process has an address.
        HostError: An address cannot be had.
        SettingError: An address is none, or a key, the authorised clients or the group cannot be used.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        limits: Limits,
        me: Peer,
        *,
        books: CallBooks,
        payloads: InlinePayloads,
        mailbox: Mailbox,
    ) -> None:
        self._books = books
        self._mailbox = mailbox
        self._peers: dict[Address, None] = {}
        self._keys = keys = load_server_keys(settings.key_file, settings.authorised_file)
        gid = group_id(settings.group)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with contextlib.ExitStack() as undo:
            undo.callback(self._context.term)
            max_connections = fitting_connections(settings.max_connections, setting="max_connections", endpoints=2)
            faults = books.incoming.peer_faults
            self._gate = None if keys is None else Gate(self._context, keys, faults)
            undo.callback(self._close_gate)
            self.control = Endpoint(
                self._context,
                zmq.ROUTER,
                settings.worker_endpoint,
                setting="worker_endpoint",
                peer=me,
                max_frame_bytes=control_frame_limit(_PARTS_OF_A_CALL * limits.max_manifest_bytes),
                max_connections=max_connections,
                send_high_water=_ANSWER_MESSAGES,
                keys=keys,
                gid=gid,
                faults=faults,
            )
            undo.callback(self.control.close, linger_ms=0)
            self._answers = PeerAnswers(self.control)
            self.data = BulkReceiver(
                settings.worker_data_endpoint,
                setting="worker_data_endpoint",
                peer=me,
                chunk_bytes=limits.chunk_bytes,
                receive_chunks=_RECEIVE_CHUNKS,
                incoming=books.incoming,
                target=payloads.target,
                complete=self._complete,
                failed=self._failed,
                max_connections=max_connections,
                keys=keys if settings.data_protection == DataProtection.ENCRYPTED else None,
                gid=gid,
            )
            undo.pop_all()

    # On the thread that receives.

    def _complete(self, arrivals: Arrivals) -> None:
        self._mailbox.post(lambda: self._books.filled(arrivals, time.monotonic()))

    def _failed(self, error: BaseException) -> None:
        def end() -> None:
            raise LocalError(f"the thread that receives chunks ended: {error!r}") from error

        self._mailbox.post(end)

    # On the loop.

    def send(self, to: Address, message: Message) -> None:
        """Has a message sent at the next `flush`, if its receiver takes it: whoever is gone asks again."""
        self._answers.add(to.routing, to.user, encode_message(message))

    def has_much_for(self, peer: Address) -> bool:
        """Whether a peer was answered so much in this turn that a long answer can wait."""
        return self._answers.has_much(peer.routing, peer.user)

    def flush(self) -> None:
        """Sends what was said since the last time."""
        self._answers.flush()

    def client_of(self, peer: Address) -> Client:
        """Returns who is behind a connection, and what they may do."""
        if self._keys is None or not self.control.is_guarded:
            return TRUSTED
        return self._keys.authorised.client_of(peer.user)

    def knows(self, peer: Address) -> None:
        """Notes a peer, to say goodbye to in the end."""
        self._peers[peer] = None
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]

    def close(self) -> None:
        """Says goodbye, and closes them; what was sent last gets two seconds to leave."""
        for peer in self._peers:
            self.send(peer, Goodbye(kept=False))
        self.flush()
        self.data.close()
        self.control.close(linger_ms=_LINGER_MS)
        self._close_gate()
        self._context.term()

    def _close_gate(self) -> None:
        if self._gate is not None:
            self._gate.close()
