"""What the benchmark of idle processes is given, and what it comes to."""

from __future__ import annotations

import msgspec

from forebay.wire import SettingError


class IdleBenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        settle_s: Seconds between the last micro-batch and the measurement.
        idle_s: Seconds that are measured.
    """

    settle_s: float = 1.0
    idle_s: float = 10.0

    def __post_init__(self) -> None:
        for name, low, high in (("settle_s", 0, 600), ("idle_s", 0.1, 3600)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")


class IdleBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out.

    Attributes:
        cpu_fraction: CPU time over time, of the process that uses most.
        cpu_fractions: The same of each process.
        idle_s: Seconds that were measured.
        settings: As they were set.
        state: What each process waits for meanwhile.
        processes: Name and pid of each process.
    """

    cpu_fraction: float
    cpu_fractions: dict[str, float]
    idle_s: float
    settings: IdleBenchSettings
    state: str
    processes: dict[str, int]
