"""What the demonstration's processes report, one JSON object a line on standard output."""

from __future__ import annotations

import sys

import msgspec

from forebay.orchestrator_client import Bar


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Something that happened in a child process."""


class PulledBatch(Event, frozen=True):
    """The orchestrator's source yielded a micro-batch.

    Attributes:
        key: Its key.
        payload_bytes: Of all leaves.
    """

    key: str
    payload_bytes: int


class TrainedBatch(Event, frozen=True):
    """The orchestrator heard that the trainer is done with a micro-batch.

    Attributes:
        key: Its key.
        step: From 0.
        loss: Mean over its trained tokens.
        source: Where the trainer had it from: staged or inline.
    """

    key: str
    step: int
    loss: float
    source: str


class TrainedStep(Event, frozen=True):
    """The orchestrator is done with a step, its update included.

    Attributes:
        number: From 0.
        began_at: Monotonic second.
        metrics: As `TrainStep.metrics` gives them; and of the trainer's queue since the step before,
            `queue/promotions`, and `queue/transfer_s`, the seconds of their copies.
        fallbacks: Key and reason of each micro-batch that went inline though it was to be staged.
        spans: Its timeline.
    """

    number: int
    began_at: float
    metrics: dict[str, float]
    fallbacks: tuple[tuple[str, str], ...]
    spans: tuple[Bar, ...]


class TrainerDevice(Event, frozen=True):
    """What the trainer computes on.

    Attributes:
        name: As jax calls it, like cpu:0 or cuda:0.
        kind: The hardware's own name.
    """

    name: str
    kind: str


class Compiled(Event, frozen=True):
    """The trainer compiled its step for the micro-batches' shapes, before it serves."""

    seconds: float


class Calibrated(Event, frozen=True):
    """What the device takes for a micro-batch when nothing else goes on."""

    compute_s: float


class ReplayedBatch(Event, frozen=True):
    """The trainer made the same micro-batch in process and trained on it without Forebay."""

    key: str


class Compared(Event, frozen=True):
    """How the two runs compare.

    Attributes:
        leaves: Arrays and static values compared by digest.
        differences: One line for each thing that is not the same bit for bit, at most a few.
        parameters: Digest of the parameters after the last step.
    """

    leaves: int
    differences: tuple[str, ...]
    parameters: str


AnyEvent = (
    PulledBatch | TrainedBatch | TrainedStep | TrainerDevice | Compiled | Calibrated | ReplayedBatch | Compared
)

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
