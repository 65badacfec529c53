"""What the trainer of the benchmarks of hand-overs is asked, and what it answers."""

from __future__ import annotations

import msgspec


class Attached(msgspec.Struct, frozen=True):
    """The trainer is attached to its queue."""

    queue: str


class Take(msgspec.Struct, frozen=True):
    """Asks to take so many micro-batches, and to finish each.

    Attributes:
        count: How many.
        timeout_s: Seconds to wait for each.
    """

    count: int
    timeout_s: float


class Taken(msgspec.Struct, frozen=True):
    """They were taken and finished.

    Attributes:
        views_at_ns: Monotonic nanosecond at which the views of each were there.
        taken_at_ns: Monotonic nanosecond at which `take` had returned each.
        cpu_s: Seconds of CPU of the trainer's process meanwhile.
    """

    views_at_ns: list[int]
    taken_at_ns: list[int]
    cpu_s: float
