"""What the ledger tells the loop to do. The ledger decides; only the loop touches sockets, memory and locks.

A dozen of these are made for each micro-batch; as Structs they cost half of what frozen dataclasses do.
"""

from __future__ import annotations

import enum

import msgspec

from forebay.shm import Outcome, SlotState
from forebay.wire import Arrivals, Event, Message


class Channel(enum.StrEnum):
    """The socket that a peer is behind."""

    CONTROL = "control"
    TRAINER = "trainer"


class Address(msgspec.Struct, frozen=True):
    """Where a peer can be answered: a socket and the routing id that it gave the peer.

    The key that the peer proved to have belongs to it, empty where none was asked for: whoever comes with another
    key is another peer, also with the same routing id.
    """

    channel: Channel
    routing: bytes
    user: str = ""


class Reply(msgspec.Struct, frozen=True):
    """Send a message to a peer."""

    to: Address
    message: Message


class ReserveSlot(msgspec.Struct, frozen=True):
    """Grow a slot's file in the background, then tell `Ledger.reserved` or `Ledger.reserve_failed`."""

    slot: int
    file_bytes: int


class WriteLoan(msgspec.Struct, frozen=True):
    """Record in the slot's header that it is being filled, and with what."""

    slot: int
    generation: int
    envelope: bytes
    body_bytes: int


class WriteBody(msgspec.Struct, frozen=True):
    """Write a whole body that came with its offer to a slot."""

    slot: int
    body: bytes


class WriteState(msgspec.Struct, frozen=True):
    """Record a slot's state in its header."""

    slot: int
    state: SlotState
    sequence: int = 0
    holder: str = ""
    ready_at: float = 0.0
    lent_at: float = 0.0


class WriteOutcome(msgspec.Struct, frozen=True):
    """Record in the journal what became of a micro-batch."""

    outcome: Outcome


class AwaitWriters(msgspec.Struct, frozen=True):
    """Go on when nobody writes any more to a slot that was being filled; a chunk's time at most."""

    arrivals: Arrivals


class WatchHolder(msgspec.Struct, frozen=True):
    """Wait in the background for a holder's lock to be free, then tell `Ledger.holder_free`."""

    holder: str


class ForgetHolder(msgspec.Struct, frozen=True):
    """Remove the lock file of a holder that is gone."""

    holder: str


class Level(enum.IntEnum):
    """Log levels, with the numbers of the logging module."""

    DEBUG = 10
    INFO = 20
    WARNING = 30


class Log(msgspec.Struct, frozen=True):
    """Write one event to the log."""

    level: Level
    event: Event
    fields: dict[str, object]


Action = (
    Reply
    | ReserveSlot
    | WriteLoan
    | WriteBody
    | WriteState
    | WriteOutcome
    | AwaitWriters
    | WatchHolder
    | ForgetHolder
    | Log
)
