"""The control messages between inspectors and the daemon about what there is."""

from __future__ import annotations

import msgspec

from .limits import Limits
from .message import Message, Peer
from .states import MicroBatchState


class GetStatus(Message, frozen=True):
    """Asks for a `Status`."""


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One slot.

    Attributes:
        index: Slot index.
        generation: Its generation.
        state: Name of its state.
        slot_bytes: Bytes reserved for it.
        queue: Of the micro-batch in it, empty if there is none.
        key: The same.
        payload_bytes: Bytes of its arrays.
        received_bytes: While it is filling: that have arrived.
        expected_bytes: While it is filling: that are to arrive.
        age_s: Seconds in the micro-batch's state.
        offered_s: Seconds since its stage call began.
        silent_s: While it is filling: seconds since anything arrived for it.
        lease_left_s: While it is filling: seconds after which it is taken back, if nothing more arrives.
        policy_version: Of the policy that it was made with.
        stale_in_s: Seconds until it is stale by its age; None for never.
        sender: Who sends it, while it is filling.
        holder: The trainer that it is lent to.
        held_s: Seconds since it was lent.
    """

    index: int
    generation: int
    state: str
    slot_bytes: int
    queue: str = ""
    key: str = ""
    payload_bytes: int = 0
    received_bytes: int = 0
    expected_bytes: int = 0
    age_s: float = 0.0
    offered_s: float = 0.0
    silent_s: float = 0.0
    lease_left_s: float = 0.0
    policy_version: int | None = None
    stale_in_s: float | None = None
    sender: Peer | None = None
    holder: Peer | None = None
    held_s: float = 0.0


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One queue.

    Attributes:
        name: Its name.
        ready: Keys of its READY micro-batches, in order.
        on_device: Keys that its trainer has on the device.
        on_device_s: Seconds since each of them got there.
        trainer: At its end; None if there is none.
        trainer_since_s: Seconds since that attached to this daemon; 0 if it has not yet.
        trainer_is_back: False while a trainer of the daemon before has not attached to this one yet.
        asks_s: Seconds for which the trainer has asked for more than it was lent; 0 if it does not.
        waits_for: Keys that it waits for out of order.
        last_trainer: The one before, if there is none now and one was there.
        gone_s: Seconds since that was known to be gone.
        was_seen_to_go: False if it may have gone before this daemon was there to see it.
        policy_version: The greatest that the queue was told.
        paused: Whether nothing is lent of it, by an operator's order.
    """

    name: str
    ready: tuple[str, ...]
    on_device: tuple[str, ...]
    on_device_s: tuple[float, ...] = ()
    trainer: Peer | None
    trainer_since_s: float
    trainer_is_back: bool = True
    asks_s: float = 0.0
    waits_for: tuple[str, ...] = ()
    last_trainer: Peer | None = None
    gone_s: float = 0.0
    was_seen_to_go: bool = True
    policy_version: int | None = None
    paused: bool = False


class OfferStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An offer that waits for a slot: for how long, and for how much longer."""

    queue: str
    key: str
    payload_bytes: int
    waits_s: float
    left_s: float
    sender: Peer | None = None
    policy_version: int | None = None


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An orchestrator or inspector, and the seconds since it last said something."""

    peer: Peer
    heard_s: float


class FaultStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that a peer did something to no avail.

    Attributes:
        counter: Its name among the counters.
        age_s: Seconds since.
        by: Who did it, or `unknown`.
    """

    counter: str
    age_s: float
    by: str


class Status(Message, frozen=True):
    """What the daemon holds now.

    Attributes:
        software: Version of the daemon's package.
        epoch: This run of it.
        peer: The daemon.
        uptime_s: Seconds since its start.
        draining: Whether it takes nothing in, because it stops or an operator said so.
        stopping: Whether it stops.
        pool: Folder of the pool.
        waiting_offers: Offers that wait for a slot.
        slots: All slots.
        queues: All queues.
        counters: How often what happened.
        offers: Those that wait, oldest first.
        peers: Those heard last, at most 100 of them.
        peer_count: How many are known.
        limits: What senders may send.
        private_bytes: Private memory of the daemon at its last look, at most a second ago; 0 if it never looks.
        max_private_bytes: At which it ends; 0 for no bound.
        paused: Whether every queue is paused.
        faults: The last of what peers did to no avail, where it is known.
    """

    software: str
    epoch: str
    peer: Peer
    uptime_s: float
    draining: bool
    pool: str
    waiting_offers: int
    slots: tuple[SlotStatus, ...]
    queues: tuple[QueueStatus, ...]
    counters: dict[str, int]
    offers: tuple[OfferStatus, ...] = ()
    peers: tuple[PeerStatus, ...] = ()
    peer_count: int = 0
    limits: Limits = Limits()
    private_bytes: int = 0
    max_private_bytes: int = 0
    stopping: bool = False
    paused: bool = False
    faults: tuple[FaultStatus, ...] = ()


class Peek(Message, frozen=True):
    """Asks what is known of one micro-batch; answered by `Peeked`."""

    queue: str
    key: str


class Peeked(Message, frozen=True, kw_only=True):
    """One micro-batch.

    Attributes:
        attempt: The stage call that it came by.
        state: Where it is.
        reason: Why it ended.
        age_s: Seconds in that state.
        offered_s: Seconds since its stage call began; 0 if that is not known any more.
        manifest: From `Manifest.encode`; empty if it is not in a slot and waits for none.
        payload_bytes: Bytes of its arrays, where they are known.
        body_bytes: Bytes of them in a slot, with the gaps between them.
        slot: Its slot, or -1.
        generation: That slot's generation.
        slot_state: Name of the slot's state, or empty.
        policy_version: Of the policy that it was made with.
        stale_in_s: Seconds until it is stale by its age; None for never.
        place: How many are lent before it, while it is READY; -1 otherwise.
        sender: Who offers or sends it.
        holder: The trainer that has it, in a slot or on its device.
        held_s: Seconds since it was lent.
        now_s: The daemon's monotonic second, by which moments are told.
    """

    attempt: str
    state: MicroBatchState
    reason: str = ""
    age_s: float = 0.0
    offered_s: float = 0.0
    manifest: bytes = b""
    payload_bytes: int = 0
    body_bytes: int = 0
    slot: int = -1
    generation: int = 0
    slot_state: str = ""
    policy_version: int | None = None
    stale_in_s: float | None = None
    place: int = -1
    sender: Peer | None = None
    holder: Peer | None = None
    held_s: float = 0.0
    now_s: float = 0.0
