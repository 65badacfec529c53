"""What a worker knows of one call, and what its books have the loop do."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from forebay.wire import Arrivals, CallId, CallState, CallStatus, Manifest, Message, PackedTree

from .call_states import CallEvent, moved


class Address(NamedTuple):
    """A connection: its routing id, and the key that it proved to have, empty where none was asked for."""

    routing: bytes
    user: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class CallRecord:
    """One call, from its first message until its answer is forgotten.

    Attributes:
        id: Its id.
        method: Name of the method.
        lane: Calls of one lane run one after another.
        sender: The latest connection that asked.
        message_id: Of the latest message about it.
        since: Monotonic second of the last move.
        state: After its making, assigned by `move` alone.
        complete_at: Monotonic second from which on it might have run.
        options: Its keyword arguments; None once it is over.
        manifest: Of its payload, if it has one.
        body_bytes: What the payload takes in memory.
        payload_number: By which its chunks name it.
        arrivals: What has arrived of the payload, while that is received.
        deadline: Monotonic second at which the silence while receiving ends.
        answer: What became of it.
    """

    id: CallId
    method: str
    lane: str
    sender: Address
    message_id: int
    since: float
    state: CallState = CallState.QUEUED
    complete_at: float = 0.0
    options: PackedTree | None = None
    manifest: Manifest | None = None
    body_bytes: int = 0
    payload_number: int = -1
    arrivals: Arrivals | None = None
    deadline: float = 0.0
    answer: Message | None = None

    def __repr__(self) -> str:
        return f"CallRecord({self.method!r}, {self.id.client} {self.id.number}, {self.state})"

    def is_of(self, sender: Address, call: CallId) -> bool:
        """Whether it is, as far as can be known, of the client that makes another call.

        Args:
            sender: Of the other call: by its key where there are some, else by its connection.
            call: Its id, of which the client part is the client's own choice.
        """
        by_sender = self.sender.user == sender.user if sender.user else self.sender.routing == sender.routing
        return by_sender or self.id.client == call.client

    def status(self, now: float) -> CallStatus:
        """Tells people where it is."""
        return CallStatus(
            method=self.method,
            client=self.id.client,
            number=self.id.number,
            state=self.state,
            since_s=now - self.since,
            received_bytes=self.arrivals.received_bytes if self.arrivals else 0,
            expected_bytes=self.arrivals.total_bytes if self.arrivals else 0,
        )

    def move(self, event: CallEvent, now: float) -> None:
        """Moves it along `CALL_TRANSITIONS`.

        Raises:
            LocalError: The table has no such move; nothing has moved.
        """
        self.state = moved(self.state, event)
        self.since = now

    def end(self, event: CallEvent, answer: Message, now: float) -> None:
        """Ends it, and lets go of what only a live call needs."""
        self.move(event, now)
        self.answer = answer
        self.options = self.manifest = self.arrivals = None


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Send a message."""

    to: Address
    message: Message


@dataclasses.dataclass(frozen=True, slots=True)
class Receive:
    """Make room for a call's payload."""

    call: CallRecord


@dataclasses.dataclass(frozen=True, slots=True)
class LetGo:
    """A payload that was being received is not wanted any more."""

    payload_number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Run a call."""

    call: CallRecord


@dataclasses.dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody waits for a call that runs: it need not wait for a micro-batch either."""

    call: CallRecord


CallAction = Answer | Receive | LetGo | Run | GiveUp
