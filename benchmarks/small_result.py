"""What the benchmark of small micro-batches is given, and what it comes to."""

from __future__ import annotations

import msgspec

from forebay.wire import SettingError


class SmallBenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        payload_kib: KiB of a micro-batch.
        micro_batches: Micro-batches of a round.
        rounds: Rounds, after one that does not count.
        in_flight: Stage calls under way at once.
        slots: Slots of the daemon's pool.
        cap: Micro-batches that the trainer may have ahead of the one that it takes; 0 for any number. By default
            as many as are in flight: of this size, a device has room for them.
    """

    payload_kib: float = 16.0
    micro_batches: int = 1000
    rounds: int = 9
    in_flight: int = 8
    slots: int = 16
    cap: int = 8

    def __post_init__(self) -> None:
        for name, low, high in (
            ("payload_kib", 2, 1 << 20),
            ("micro_batches", 1, 1_000_000),
            ("rounds", 1, 1000),
            ("in_flight", 1, 256),
            ("slots", 1, 1024),
            ("cap", 0, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")


class SmallRound(msgspec.Struct, frozen=True, kw_only=True):
    """One round.

    Attributes:
        per_s: Micro-batches a second.
        cpu_s: Seconds of CPU of each process.
    """

    per_s: float
    cpu_s: dict[str, float]


class SmallBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out; medians over the rounds, and the least and the greatest in `..._spread`.

    Attributes:
        per_s: Micro-batches a second.
        per_s_spread: Over the rounds.
        per_s_cap_1: The same with a cap of one, a trainer's default: each micro-batch is asked for when
            the one before is taken.
        cpu_s_per_1000: Seconds of CPU of each process for 1000 micro-batches.
        cpu_s_per_1000_spread: Over the rounds.
        payload_bytes: Bytes of a micro-batch.
        rounds: Each of them.
        settings: As they were set.
        measured: From which moment to which.
        copy: What stood for the copy to the device.
        processes: Name and pid of each process.
    """

    per_s: float
    per_s_spread: tuple[float, float]
    per_s_cap_1: float
    cpu_s_per_1000: dict[str, float]
    cpu_s_per_1000_spread: dict[str, tuple[float, float]]
    payload_bytes: int
    rounds: list[SmallRound]
    settings: SmallBenchSettings
    measured: str
    copy: str
    processes: dict[str, int]
