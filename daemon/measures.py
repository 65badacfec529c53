"""What the ledger measures of micro-batches at their moves. Pure, and cheap: a bisection and an addition each."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Final

SECONDS_BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Upper bounds of the buckets for times: from a small micro-batch's hand-over to a trainer that compiles."""

BYTES_BOUNDS: Final = tuple(float(1 << exponent) for exponent in range(10, 36, 2))
"""Upper bounds of the buckets for sizes: 1 KiB to 16 GiB, by four."""


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram held at one moment.

    Attributes:
        bounds: Upper bounds of the buckets but the last, which has none; a value that equals one is below it.
        counts: Values in each bucket alone.
        total: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts values by bucket.

    Args:
        bounds: See `Distribution`.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._total += value

    def now(self) -> Distribution:
        """Returns what it holds."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


class Measures:
    """The histograms of one daemon, observed by its ledger alone.

    Attributes:
        stage_s: From the coming of an offer to its micro-batch being READY.
        queue_s: From READY to lent.
        lent_s: From lent to released.
        on_device_s: From promoted to consumed.
        trainer_wait_s: From a wish of a trainer that nothing READY could meet to the lend that met it.
        payload_bytes: Of published micro-batches.
    """

    def __init__(self) -> None:
        self.stage_s = Histogram(SECONDS_BOUNDS)
        self.queue_s = Histogram(SECONDS_BOUNDS)
        self.lent_s = Histogram(SECONDS_BOUNDS)
        self.on_device_s = Histogram(SECONDS_BOUNDS)
        self.trainer_wait_s = Histogram(SECONDS_BOUNDS)
        self.payload_bytes = Histogram(BYTES_BOUNDS)
