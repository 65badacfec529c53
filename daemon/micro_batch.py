"""What the daemon knows of one micro-batch."""

from __future__ import annotations

import dataclasses
import math

from forebay.shm import Envelope, Outcome, file_bytes_for
from forebay.wire import (
    MICRO_BATCH_TRANSITIONS,
    TRUSTED,
    Arrivals,
    Client,
    LocalError,
    MicroBatchEvent,
    MicroBatchState,
)

from .actions import Address

_BYTES_PER_LEAF = 40
"""Of an integer in a tuple."""


class IllegalMoveError(LocalError):
    """A move that a micro-batch's table does not have; nothing has moved."""


@dataclasses.dataclass(slots=True, eq=False)
class MicroBatch:
    """One micro-batch, from its offer until it is forgotten.

    Attributes:
        queue: Queue name.
        key: Its key there.
        attempt: The stage call that it came by.
        envelope: What its slot's file will say about it, encoded.
        leaf_bytes: Bytes of each of its leaves, in order.
        payload_bytes: Bytes of its leaves.
        sender: Who is told what becomes of the offer; the latest connection that asked.
        client: Who that is to the operator: what it is told says no more than it may see.
        offer_id: Id of the latest offer message.
        deadline: Monotonic second at which the offer, or the silence while filling, ends.
        state: Assigned by `move` alone.
        reason: Why it ended.
        sequence: Place in the queue, from its publication or from the entry that it replaced; 0 = none yet.
        was_published: Whether its bytes were ever complete.
        was_trained: Whether its key was trained by another way while the trainer held it: it ends as consumed.
        was_reset: Whether its queue was reset while the trainer held it; should it come back, it is dropped.
        is_only_for_fitting: Whether a slot could not grow for it: it waits for one that is large enough already.
        fell_silent: Whether its lease ended while it was filling; its sender may go on where it can.
        slot: Slot index, or -1.
        generation: That slot's generation.
        arrivals: While it is filling.
        body: All of its bytes, if they came with the offer, until a slot has them.
        since: Monotonic second of the last move.
        lent_at: Monotonic second in which its slot was lent; 0 if it is not.
        ready_at: Monotonic second in which it was published.
        queued_at: Monotonic second since which it can be lent.
        came_at: Monotonic second in which its offer came.
        offered_at: Monotonic second in which its stage call began.
        expires_at: Monotonic second from which on it is stale; infinite for never.
        policy_version: Of the policy that it was made with, if anybody said.
        is_stale: Whether it was dropped because it was stale.
        was_told_stale: Whether the trainer that holds it was told that it is stale.
    """

    queue: str
    key: str
    attempt: str
    envelope: bytes = b""
    leaf_bytes: tuple[int, ...] = ()
    payload_bytes: int = 0
    body_bytes: int = 0
    sender: Address | None = None
    client: Client = TRUSTED
    offer_id: int = 0
    deadline: float = 0.0
    state: MicroBatchState = MicroBatchState.OFFERED
    reason: str = ""
    sequence: int = 0
    was_published: bool = False
    was_trained: bool = False
    was_reset: bool = False
    fell_silent: bool = False
    is_only_for_fitting: bool = False
    slot: int = -1
    generation: int = 0
    arrivals: Arrivals | None = None
    body: bytes = b""
    since: float = 0.0
    lent_at: float = 0.0
    ready_at: float = 0.0
    queued_at: float = 0.0
    came_at: float = 0.0
    offered_at: float = 0.0
    expires_at: float = math.inf
    policy_version: int | None = None
    is_stale: bool = False
    was_told_stale: bool = False

    @property
    def file_bytes(self) -> int:
        """Size that its slot's file must have."""
        return file_bytes_for(self.body_bytes, len(self.envelope))

    @property
    def waiting_bytes(self) -> int:
        """Memory that it takes while it waits for a slot, nearly."""
        return len(self.envelope) + len(self.body) + _BYTES_PER_LEAF * len(self.leaf_bytes)

    def silent_at(self, fill_lease_s: float) -> float:
        """Returns the monotonic second at which its sender has been silent for a lease, if nothing more comes."""
        last_at = self.arrivals.last_at if self.arrivals is not None else 0.0
        return max(self.deadline, last_at + fill_lease_s)

    def forget_contents(self) -> None:
        """Lets go of what only a live micro-batch needs; its outcome may be remembered for long."""
        self.envelope, self.leaf_bytes, self.arrivals, self.sender = b"", (), None, None
        self.body = b""

    def move(self, event: MicroBatchEvent, now: float, reason: str = "") -> None:
        """Moves it along `MICRO_BATCH_TRANSITIONS`.

        Raises:
            IllegalMoveError: The table has no such move; nothing has moved.
        """
        after = MICRO_BATCH_TRANSITIONS.get((self.state, event))
        if after is None:
            raise IllegalMoveError(f"micro-batch {self.key!r} is {self.state} and cannot take {event.value!r}")
        self.state = after
        self.reason = reason
        self.since = now


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSlot:
    """A slot of an adopted pool that holds a complete micro-batch.

    Attributes:
        index: Slot index.
        generation: Its generation.
        sequence: Place in the queue.
        envelope: Decoded from its file.
        encoded_envelope: The same, encoded.
        body_bytes: Of its body.
        payload_bytes: Of its leaves.
        holder: The trainer that it was lent to, or empty.
        ready_at: Monotonic second in which it was published.
        lent_at: Monotonic second in which it was lent; 0 if it is not.
    """

    index: int
    generation: int
    sequence: int
    envelope: Envelope
    encoded_envelope: bytes
    body_bytes: int
    payload_bytes: int
    holder: str
    ready_at: float
    lent_at: float


def found_batch(found: FoundSlot) -> MicroBatch:
    """Makes the micro-batch that an adopted slot holds."""
    return MicroBatch(
        queue=found.envelope.queue,
        key=found.envelope.key,
        attempt=found.envelope.attempt,
        envelope=found.encoded_envelope,
        payload_bytes=found.payload_bytes,
        body_bytes=found.body_bytes,
        state=MicroBatchState.READY,
        sequence=found.sequence,
        was_published=True,
        slot=found.index,
        generation=found.generation,
        since=found.ready_at,
        ready_at=found.ready_at,
        queued_at=found.ready_at,
        lent_at=found.lent_at,
        offered_at=found.envelope.offered_at,
        expires_at=math.inf if found.envelope.expires_at is None else found.envelope.expires_at,
        policy_version=found.envelope.policy_version,
    )


def past_second(second: float, now: float) -> float:
    """Returns a monotonic second that a pool tells; now, if it cannot be one: damaged, or of another clock."""
    return second if 0 < second <= now else now


def recalled_batch(outcome: Outcome, now: float) -> MicroBatch:
    """Makes the micro-batch that a journal tells of; nothing is left of it but that."""
    return MicroBatch(
        queue=outcome.queue,
        key=outcome.key,
        attempt=outcome.attempt,
        state=outcome.state,
        reason=outcome.words,
        was_published=outcome.was_published,
        is_stale=outcome.is_stale,
        since=past_second(outcome.at, now),
    )


def on_device_batch(queue: str, key: str, attempt: str, now: float) -> MicroBatch:
    """Makes the micro-batch that a trainer says it has on its device."""
    return MicroBatch(queue, key, attempt, state=MicroBatchState.ON_DEVICE, was_published=True, since=now)
