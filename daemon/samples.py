"""From figures to the values of metrics: pure, and without a library."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from forebay.wire import printable

from .figures import Figures, QueueFigures
from .measures import Distribution
from .metric_table import COUNTERS, MEASURED, OTHER_QUEUES, SHOWN_QUEUES, Series
from .server_sockets import Headcount

Values = dict[Series, float | Distribution]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """What is known of the daemon's process, also while its loop hangs.

    Attributes:
        version: Of this package.
        protocol: Version of the protocol.
        started_at: Unix second.
        private_bytes: Private memory.
        max_private_bytes: At which it ends; 0 for none.
        answer_s: Seconds that the loop took to answer.
    """

    version: str
    protocol: int
    started_at: float
    private_bytes: int
    max_private_bytes: int
    answer_s: float


def values_of(process: ProcessFigures, figures: Figures | None, headcounts: Iterable[Headcount] = ()) -> Values:
    """Returns the value of each series.

    Args:
        process: Of the process.
        figures: What the loop told; None if it did not answer.
        headcounts: Of the endpoints.
    """
    values: Values = {
        ("forebay_build_info", (process.version, str(process.protocol))): 1,
        ("forebay_start_time_seconds", ()): process.started_at,
        ("forebay_loop_answered", ()): int(figures is not None),
        ("forebay_loop_answer_seconds", ()): process.answer_s,
        ("forebay_private_memory_bytes", ()): process.private_bytes,
        ("forebay_private_memory_limit_bytes", ()): process.max_private_bytes,
    }
    if figures is None:
        return values
    for count in headcounts:
        values["forebay_connections", (count.endpoint,)] = count.connections
        values["forebay_connections_refused_total", (count.endpoint,)] = count.refused
    return values | _held(figures) | _queues(figures.queues) | _counted(figures)


def _held(figures: Figures) -> Values:
    return {
        ("forebay_draining", ()): int(figures.draining),
        ("forebay_slot_bytes", ()): figures.slot_bytes,
        ("forebay_waiting_offers", ()): figures.waiting_offers,
        **{("forebay_slots", (state.name,)): count for state, count in figures.slots.items()},
    }


def _queues(queues: tuple[QueueFigures, ...]) -> Values:
    values: dict[Series, float] = {}
    for place, queue in enumerate(queues):
        # Names are the peers': a bound on them is one on what Prometheus has to keep.
        labels = (printable(queue.name) if place < SHOWN_QUEUES else OTHER_QUEUES,)
        sums = {
            "forebay_queue_ready": queue.ready,
            "forebay_queue_on_device": queue.on_device,
            "forebay_queue_paused": int(queue.is_paused),
            "forebay_queue_trainer_attached": int(queue.has_trainer),
        }
        for metric, value in sums.items():
            values[metric, labels] = values.get((metric, labels), 0) + value
        waiting = ("forebay_queue_trainer_waiting_seconds", labels)
        values[waiting] = max(values.get(waiting, 0.0), queue.trainer_waits_s)
    return dict(values)


def _counted(figures: Figures) -> Values:
    values: Values = {series: figures.counters.get(counter, 0) for counter, series in COUNTERS.items()}
    for codec, received in figures.received.items():
        values["forebay_received_chunks_total", (codec,)] = received.chunks
        values["forebay_received_wire_bytes_total", (codec,)] = received.wire_bytes
        values["forebay_received_bytes_total", (codec,)] = received.decoded_bytes
    return values | {(metric, ()): figures.measured[name] for name, metric in MEASURED.items()}
