"""What the benchmark of the staging queue is given, and what it comes to."""

from __future__ import annotations

import msgspec

from forebay.wire import SettingError


class QueueBenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        payload_mib: MiB of a micro-batch.
        micro_batches: Micro-batches of one run.
        pairs: Runs in the mode `stage`, each followed by one in the mode `serialize`.
        pop_transfer_mib: MiB of the transfer beside which entries are popped.
        cap: Micro-batches on the device beside the running one.
    """

    payload_mib: float = 256.0
    micro_batches: int = 9
    pairs: int = 7
    pop_transfer_mib: float = 256.0
    cap: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("payload_mib", 1, 8192),
            ("micro_batches", 3, 10_000),
            ("pairs", 1, 1000),
            ("pop_transfer_mib", 1, 8192),
            ("cap", 1, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")


class QueueBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out; medians, and the least and the greatest in `..._spread`.

    Attributes:
        pop_on_device_us_p50: Microseconds to pop an entry that is on the device while another transfer runs.
        pop_on_device_us_max: The longest of them.
        pops: How many were popped.
        stage_batch_us_p50: Microseconds of one `stage_batch` while the device is full.
        overlap_efficiency: Share of the copies' time that is hidden behind the compute; 1 if all of it is. The
            first copy has nothing to hide behind and does not count.
        overlap_efficiency_spread: Over the pairs.
        serialize_overlap_efficiency: The same in the mode `serialize`.
        serialize_over_stage: How many times longer a run takes in the mode `serialize`.
        serialize_over_stage_spread: Over the pairs.
        max_live_device_sets: Most micro-batches that had arrays on the device at once, the running one included.
        cap: As it was set.
        compute: What stood for the device's compute.
        memory: What stood for the device's memory, where that is the host's.
        compute_ms: Milliseconds of it for a micro-batch.
        copy_ms: Milliseconds of one transfer, median.
        payload_mib: As it was set.
        micro_batches: As it was set.
        pairs: As it was set.
        device: Of jax.
        timeline: Where the picture was written, if it was asked for.
    """

    pop_on_device_us_p50: float
    pop_on_device_us_max: float
    pops: int
    stage_batch_us_p50: float
    overlap_efficiency: float
    overlap_efficiency_spread: tuple[float, float]
    serialize_overlap_efficiency: float
    serialize_over_stage: float
    serialize_over_stage_spread: tuple[float, float]
    max_live_device_sets: int
    cap: int
    compute: str
    memory: str
    compute_ms: float
    copy_ms: float
    payload_mib: float
    micro_batches: int
    pairs: int
    device: str
    timeline: str | None
