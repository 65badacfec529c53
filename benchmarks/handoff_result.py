"""What the benchmark of hand-overs is given, and what it comes to."""

from __future__ import annotations

import msgspec

from forebay.wire import SettingError


class HandoffBenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        small_mib: MiB of the small micro-batches.
        small_count: How many of them are handed over.
        large_mib: MiB of the large micro-batches.
        large_count: How many of them are handed over.
    """

    small_mib: float = 0.0625
    small_count: int = 1000
    large_mib: float = 1024.0
    large_count: int = 40

    def __post_init__(self) -> None:
        for name, low, high in (
            ("small_mib", 0.002, 8192),
            ("small_count", 2, 1_000_000),
            ("large_mib", 0.002, 8192),
            ("large_count", 2, 100_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")


class HandoffRow(msgspec.Struct, frozen=True, kw_only=True):
    """Hand-overs of micro-batches of one size; all times begin when the daemon published one.

    Attributes:
        payload_bytes: Bytes of a micro-batch.
        count: Hand-overs that the percentiles rest on.
        p50_us: Microseconds until the trainer has numpy views of all leaves, median.
        p99_us: 99th percentile of those.
        max_us: The longest of them.
        take_p50_us: Microseconds until the trainer's `take` has returned, median.
        take_p99_us: 99th percentile of those.
        trainer_cpu_ms: Milliseconds of CPU of the trainer's process for each hand-over, up to its end.
    """

    payload_bytes: int
    count: int
    p50_us: float
    p99_us: float
    max_us: float
    take_p50_us: float
    take_p99_us: float
    trainer_cpu_ms: float


class HandoffBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out.

    Attributes:
        small: Of the small micro-batches.
        large: Of the large ones.
        p50_us: Microseconds from published to views, median, of the size that is slower.
        p99_us: 99th percentile, of the size that is slower.
        equal: The larger of the two medians over the smaller.
        trainer_cpu_s_per_gb: Seconds of CPU of the trainer's process for each 10^9 bytes, in large micro-batches,
            the copy to the device left out.
        settings: As they were set.
        measured: From which moment to which.
        copy: What stood for the copy to the device.
        processes: Name and pid of each process.
    """

    small: HandoffRow
    large: HandoffRow
    p50_us: float
    p99_us: float
    equal: float
    trainer_cpu_s_per_gb: float
    settings: HandoffBenchSettings
    measured: str
    copy: str
    processes: dict[str, int]
