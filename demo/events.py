"""What the demonstration's processes report, one JSON object a line on standard output."""

from __future__ import annotations

import sys

import msgspec


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Something that happened in a child process."""


class StagedBatch(Event, frozen=True):
    """The orchestrator staged a micro-batch.

    Attributes:
        key: Its key.
        payload_bytes: Of all leaves.
        stage_s: From the offer to the answer that the slot is published, the wait for a free slot included.
    """

    key: str
    payload_bytes: int
    stage_s: float


class ConsumedBatch(Event, frozen=True):
    """The orchestrator heard that a micro-batch was consumed."""

    key: str


class TrainerDevice(Event, frozen=True):
    """What the trainer computes on.

    Attributes:
        name: As jax calls it, like cpu:0 or cuda:0.
        kind: The hardware's own name.
    """

    name: str
    kind: str


class Compiled(Event, frozen=True):
    """The trainer compiled its step for the first micro-batch's shapes."""

    seconds: float


class TrainedBatch(Event, frozen=True):
    """The trainer finished a micro-batch that came through the daemon.

    Attributes:
        key: Its key.
        step: From 0.
        loss: Mean over its trained tokens.
        host_bytes: Of all leaves, as they lay in the slot.
        promote_s: The copy from the slot to the device.
        idle_s: From the one before being ready to this one's dispatch; 0 for the run's first.
        compute_s: From its dispatch to loss and gradients being ready, the update at a step's end included.
    """

    key: str
    step: int
    loss: float
    host_bytes: int
    promote_s: float
    idle_s: float
    compute_s: float


class ReplayedBatch(Event, frozen=True):
    """The trainer made the same micro-batch in process and trained on it without Forebay."""

    key: str


class Compared(Event, frozen=True):
    """How the two runs compare.

    Attributes:
        leaves: Arrays and static values compared by digest.
        differences: One line for each thing that is not the same bit for bit, at most a few.
    """

    leaves: int
    differences: tuple[str, ...]


AnyEvent = StagedBatch | ConsumedBatch | TrainerDevice | Compiled | TrainedBatch | ReplayedBatch | Compared

_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def emit(event: AnyEvent) -> None:
    """Writes an event to standard output at once."""
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def decode_event(line: bytes) -> AnyEvent:
    """Decodes a line that `emit` wrote.

    Raises:
        msgspec.DecodeError: It is no event.
    """
    return _DECODER.decode(line)
