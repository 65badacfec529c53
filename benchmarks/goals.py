"""What the benchmarks are to reach, and what a run reached of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """One figure and its bounds.

    Attributes:
        key: Where it stands in the result of `forebay bench all`: the benchmark, then the path in its result.
        meaning: What it is.
        at_least: Lower bound, if it has one.
        at_most: Upper bound, if it has one.
    """

    key: str
    meaning: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bounds(self) -> str:
        """The bounds, for people."""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    def value(self, results: Mapping[str, Any]) -> float | None:
        """Finds the figure; None where it was not measured."""
        found: Any = results
        for part in self.key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return None if found is None else float(found)

    def spread(self, results: Mapping[str, Any]) -> tuple[float, float] | None:
        """Finds the least and the greatest of what the figure is the median of; None where that is not told."""
        path, _, name = self.key.rpartition(".")
        found: Any = results
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        pair = found.get(f"{name}_spread") if isinstance(found, Mapping) else None
        return None if pair is None else (float(pair[0]), float(pair[1]))

    def is_reached(self, value: float) -> bool:
        """Tells whether a figure keeps the bounds."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


GOALS: Final = (
    Goal("ingest.over_raw_tcp", "1 GiB raw over TCP, offer to published: raw TCP's time over ours", at_least=0.95),
    Goal("ingest.over_raw_tcp_pieces", "the same beside the fastest form of raw TCP", at_least=0.95),
    Goal("ingest.over_grpc_stream", "a gRPC stream's time over ours", at_least=2.0),
    Goal("ingest.over_flight", "Arrow Flight's time over ours", at_least=1.5),
    Goal("ingest.over_grpc_unary", "one pickled gRPC message's time over ours", at_least=6.0),
    Goal("ingest.encrypted_over_plain", "throughput with encrypted data over that without keys", at_least=0.25),
    Goal("ingest.authenticated_over_plain", "the same with an encrypted control connection alone", at_least=0.95),
    Goal("ingest.leaves_64_over_1", "throughput with 64 leaves over that with one", at_least=0.95),
    Goal("ingest.linear", "seconds a GB of 2 GiB over those of 256 MiB", at_least=0.95, at_most=1.05),
    Goal("ingest.daemon_private_mib_max", "the daemon's private MiB, 256 MiB to 4 GiB", at_most=48),
    Goal("ingest.first_over_steady", "a daemon's first micro-batch over its later ones", at_most=1.15),
    Goal("handoff.p50_us", "published to views in the trainer, median, the slower size", at_most=200),
    Goal("handoff.p99_us", "the same, 99th percentile", at_most=2000),
    Goal("handoff.equal", "the medians of 1 GiB and 64 KiB, greater over smaller", at_most=1.5),
    Goal("handoff.trainer_cpu_s_per_gb", "trainer's CPU seconds a GB, without the copy", at_most=0.02),
    Goal("codecs.full", "wire bytes of expert ids below 512, rows full", at_most=0.575),
    Goal("codecs.fill60", "the same, rows filled to 60 %", at_most=0.35),
    Goal("codecs.full_gbps", "GB of arrays a second on a 0.5 GB/s wire, rows full", at_least=0.85),
    Goal("codecs.fill60_gbps", "the same, rows filled to 60 %", at_least=1.3),
    Goal("small.per_s", "micro-batches of 16 KiB a second, 8 in flight, offer to consumed", at_least=1500),
    Goal("idle.cpu_fraction", "CPU of the busiest process when nothing flows", at_most=0.01),
)
