"""What the benchmark of staging ahead is given, and what it comes to."""

from __future__ import annotations

import msgspec

from forebay.wire import SettingError

from .floor import Workload

COMPUTE_S = 10.35
"""Of a real micro-batch; everything else keeps its ratio to it."""
COPY_S = 3.9
UPDATE_S = 10.0
WIRES: dict[str, tuple[float, ...]] = {
    "steady": (9.0,) * 9,
    "compressed": (4.5,) * 9,
    "trace": (9.0, 16.2, 15.1, 13.4, 11.9, 10.4, 9.6, 9.4, 8.9),
}
"""Seconds on the wire of each micro-batch of a step: steady, half of the bytes, and a bad step that was seen."""


class OverlapBenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        payload_mib: MiB of a micro-batch.
        compute_s: Seconds of compute that a timed wait stands in for, a micro-batch; the rest is scaled with it.
        steps: Steps of each run, of nine micro-batches each.
        wires: Names of the wires.
    """

    payload_mib: float = 48.0
    compute_s: float = 0.5
    steps: int = 6
    wires: tuple[str, ...] = tuple(WIRES)

    def __post_init__(self) -> None:
        for name, low, high in (("payload_mib", 1, 8192), ("compute_s", 0.01, 60), ("steps", 1, 1000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")
        if not self.wires or not set(self.wires) <= set(WIRES):
            raise SettingError("setting wires", got=self.wires, limit=", ".join(WIRES))

    def workload(self, wire: str) -> Workload:
        """Returns the scaled workload on one of the wires."""
        scale = self.compute_s / COMPUTE_S
        return Workload(
            wire_s=tuple(seconds * scale for seconds in WIRES[wire]),
            copy_s=COPY_S * scale,
            compute_s=self.compute_s,
            update_s=UPDATE_S * scale,
            steps=self.steps,
        )


class OverlapRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        wire: Its wire.
        schedule: Its schedule.
        total_s: Seconds from asking for the first step to the end of the last update.
        idle_s: Those in which the device had nothing to do.
        floor_s: The least that the model allows for `total_s`.
        over_floor: `total_s` over `floor_s`.
        idle: `idle_s` over `total_s`.
        floor_idle: The same in the model.
        first_fill_s: Part of `idle_s` before the first dispatch.
        idle_after_fill: The rest of `idle_s`, over `total_s`.
        fallbacks: Micro-batches that went inline though they were to be staged.
        late_copies: Transfers to the device that took longer than the stated time.
    """

    wire: str
    schedule: str
    total_s: float
    idle_s: float
    floor_s: float
    over_floor: float
    idle: float
    floor_idle: float
    first_fill_s: float
    idle_after_fill: float
    fallbacks: int
    late_copies: int


class OverlapBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out.

    Attributes:
        rows: One a run: three schedules on each wire.
        settings: As they were set.
        compute: What stood for the device's compute.
        wire: What stood for the wire.
        copy: What stood for the link to the device.
        memory: What stood for the device's memory, where that is the host's.
        processes: Name and pid of each process.
        device: Of jax.
        timeline: Where the picture was written, if it was asked for.
    """

    rows: list[OverlapRow]
    settings: OverlapBenchSettings
    compute: str
    wire: str
    copy: str
    memory: str
    processes: dict[str, int]
    device: str
    timeline: str | None
