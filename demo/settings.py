"""What the demonstration's processes must agree on."""

from __future__ import annotations

import enum
import math
from typing import Final

import msgspec

from forebay.wire import GIB, MIB, SettingError

ROW_TOKENS: Final = 512
"""T: tokens a row."""
SEGMENT_ALIGNMENT: Final = 64
"""Segments start at multiples of this many tokens."""
LAYERS: Final = 60
"""L: layers of the model that wrote the rollouts, each with its own router."""
EXPERTS_PER_TOKEN: Final = 10
"""K: experts that a layer routes a token to."""
EXPERTS: Final = 128
"""Experts a layer has; ids are below it."""
PLAIN_LEAVES: Final = 9
"""Leaves of [B, T] with 4 bytes an element."""

ROW_BYTES: Final = ROW_TOKENS * (LAYERS * EXPERTS_PER_TOKEN * 2 + PLAIN_LEAVES * 4)
QUEUE: Final = "train"
WAIT_S: Final = 600.0
"""Seconds that any one wait for another process may take."""
FINISH: Final = "finish"
"""The worker's method that the orchestrator calls when there is nothing more to train."""
WIRE_OVER_COMPUTE: Final = 0.87
"""Seconds on the wire for a second of compute. Source: runs with micro-batches of 5 GB, 9 s for 10.35 s."""
_GIGABIT_BYTES: Final = 125_000_000


class Mode(enum.StrEnum):
    """What the trainer does with micro-batches that could be staged; see `forebay.StageMode`."""

    OFF = "off"
    SERIALIZE = "serialize"
    STAGE = "stage"


class DemoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The same for the orchestrator, which sends, and the trainer, which checks what came.

    Attributes:
        steps: Optimizer updates.
        micro_batches: Micro-batches a step.
        payload_mib: Least MiB of leaves a micro-batch; it grows the rows.
        seed: Of everything that is drawn.
        mode: What the trainer does with what could be staged.
        wire_gbit_s: The rate in Gbit/s that the orchestrator keeps to when it sends; 0 = as fast as it goes.

    Raises:
        SettingError: A value is out of range.
    """

    steps: int = 3
    micro_batches: int = 9
    payload_mib: float = 16.0
    seed: int = 0
    mode: Mode = Mode.STAGE
    wire_gbit_s: float = 0.0

    def __post_init__(self) -> None:
        _check("steps", self.steps, 1, 10_000)
        _check("micro_batches", self.micro_batches, 1, 10_000)
        _check("payload_mib", self.payload_mib, 0.01, GIB / MIB)
        _check("seed", self.seed, 0, (1 << 31) - 1)
        _check("wire_gbit_s", self.wire_gbit_s, 0, 1000)

    @property
    def rows(self) -> int:
        """B: rows a micro-batch."""
        return math.ceil(self.payload_mib * MIB / ROW_BYTES)

    @property
    def payload_bytes(self) -> int:
        """Of all leaves of a micro-batch."""
        return self.rows * ROW_BYTES

    @property
    def wire_bytes_per_s(self) -> float:
        """The rate to keep to; 0 for none."""
        return self.wire_gbit_s * _GIGABIT_BYTES

    def wire_gbit_s_for(self, compute_s: float) -> float:
        """Returns the rate at which the wire has the real ratio to a micro-batch's compute."""
        return self.payload_bytes / (WIRE_OVER_COMPUTE * compute_s) / _GIGABIT_BYTES

    @property
    def total(self) -> int:
        """Micro-batches of all steps."""
        return self.steps * self.micro_batches

    def encode(self) -> str:
        """Encodes for a command line."""
        return msgspec.json.encode(self).decode()


def decode_settings(text: str) -> DemoSettings:
    """Decodes what `DemoSettings.encode` made.

    Raises:
        SettingError: It is malformed, or a value is out of range.
    """
    try:
        return msgspec.json.decode(text, type=DemoSettings)
    except msgspec.DecodeError as error:
        raise SettingError(f"the demo's settings cannot be read: {error}", got=text) from error


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise SettingError(f"setting {name} is out of range", got=value, limit=f"{least} to {most}")
