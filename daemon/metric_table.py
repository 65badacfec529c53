"""The daemon's metrics: names, labels and meanings. The docs are made from this table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from forebay.sockets import HANDSHAKE_FAILURES
from forebay.wire import ChunkFault, RefusalCode

from .end_reasons import DROPPED_BY, LOST_BY
from .staleness import STALE_BY


class Kind(enum.StrEnum):
    """What a metric is to Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: Its name in a query; a histogram's without `_bucket`, `_sum` and `_count`.
        kind: What it is.
        meaning: One line.
        labels: Names of its labels.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


SHOWN_QUEUES: Final = 50
OTHER_QUEUES: Final = "(others)"

_PEER_MADE: Final = "of the queue; with more than 50 queues, those beyond are one, (others)"

METRICS: Final = (
    Metric("forebay_build_info", Kind.GAUGE, "1; the labels say which versions run", ("version", "protocol")),
    Metric("forebay_start_time_seconds", Kind.GAUGE, "Unix time of the daemon's start"),
    Metric(
        "forebay_loop_answered",
        Kind.GAUGE,
        "1 if the loop answered within a second; 0: it hangs, no others follow",
    ),
    Metric("forebay_loop_answer_seconds", Kind.GAUGE, "seconds that the loop took to answer this look"),
    Metric("forebay_private_memory_bytes", Kind.GAUGE, "private memory of the daemon, without slots"),
    Metric("forebay_private_memory_limit_bytes", Kind.GAUGE, "the setting max_private_bytes; 0 for no bound"),
    Metric(
        "forebay_draining", Kind.GAUGE, "1 if no new offers are taken: the daemon stops, or an operator drains it"
    ),
    Metric("forebay_slots", Kind.GAUGE, "slots in each state", ("state",)),
    Metric("forebay_slot_bytes", Kind.GAUGE, "bytes of shared memory that all slots have reserved"),
    Metric("forebay_waiting_offers", Kind.GAUGE, "offers that wait for a slot"),
    Metric("forebay_queue_ready", Kind.GAUGE, f"READY micro-batches {_PEER_MADE}", ("queue",)),
    Metric(
        "forebay_queue_on_device", Kind.GAUGE, f"promoted, not finished micro-batches {_PEER_MADE}", ("queue",)
    ),
    Metric(
        "forebay_queue_paused", Kind.GAUGE, f"1 if an operator holds back what is READY {_PEER_MADE}", ("queue",)
    ),
    Metric("forebay_queue_trainer_attached", Kind.GAUGE, f"trainers {_PEER_MADE}", ("queue",)),
    Metric(
        "forebay_queue_trainer_waiting_seconds",
        Kind.GAUGE,
        f"seconds since which the trainer has wanted what there is not, the longest {_PEER_MADE}",
        ("queue",),
    ),
    Metric("forebay_connections", Kind.GAUGE, "connections to an endpoint", ("endpoint",)),
    Metric(
        "forebay_connections_refused_total",
        Kind.COUNTER,
        "connections that were shut because there were max_connections",
        ("endpoint",),
    ),
    Metric("forebay_micro_batches_published_total", Kind.COUNTER, "micro-batches that became READY"),
    Metric("forebay_published_bytes_total", Kind.COUNTER, "payload bytes of those, decoded"),
    Metric("forebay_micro_batches_consumed_total", Kind.COUNTER, "micro-batches that were trained"),
    Metric(
        "forebay_micro_batches_dropped_total", Kind.COUNTER, "micro-batches that will not be trained", ("reason",)
    ),
    Metric(
        "forebay_micro_batches_lost_total", Kind.COUNTER, "micro-batches lost with a trainer's device", ("reason",)
    ),
    Metric("forebay_stale_offers_total", Kind.COUNTER, "offers that were stale when they came", ("reason",)),
    Metric("forebay_refusals_total", Kind.COUNTER, "requests that were refused", ("code",)),
    Metric("forebay_late_releases_total", Kind.COUNTER, "releases of a slot that was released before"),
    Metric(
        "forebay_offer_body_bytes_total", Kind.COUNTER, "bytes of small micro-batches that came with their offers"
    ),
    Metric("forebay_offer_bodies_wrong_total", Kind.COUNTER, "offers that came with a body that was wrong"),
    Metric("forebay_received_chunks_total", Kind.COUNTER, "chunks that arrived and were right", ("codec",)),
    Metric("forebay_received_wire_bytes_total", Kind.COUNTER, "bytes of those on the wire", ("codec",)),
    Metric("forebay_received_bytes_total", Kind.COUNTER, "bytes of those, decoded", ("codec",)),
    Metric("forebay_chunk_faults_total", Kind.COUNTER, "chunks that were thrown away", ("fault",)),
    Metric("forebay_handshake_failures_total", Kind.COUNTER, "handshakes that failed", ("reason",)),
    Metric("forebay_stage_seconds", Kind.HISTOGRAM, "from the coming of an offer to its micro-batch being READY"),
    Metric("forebay_queue_seconds", Kind.HISTOGRAM, "from READY to lent"),
    Metric("forebay_lent_seconds", Kind.HISTOGRAM, "from lent to released"),
    Metric("forebay_on_device_seconds", Kind.HISTOGRAM, "from promoted to consumed"),
    Metric(
        "forebay_trainer_wait_seconds",
        Kind.HISTOGRAM,
        "from a trainer's wish that nothing READY could meet to the lend that met it",
    ),
    Metric("forebay_micro_batch_bytes", Kind.HISTOGRAM, "payload bytes of a published micro-batch"),
)
"""Every metric, in the order in which it is told."""

MEASURED: Final[Mapping[str, str]] = {
    "stage_s": "forebay_stage_seconds",
    "queue_s": "forebay_queue_seconds",
    "lent_s": "forebay_lent_seconds",
    "on_device_s": "forebay_on_device_seconds",
    "trainer_wait_s": "forebay_trainer_wait_seconds",
    "payload_bytes": "forebay_micro_batch_bytes",
}
"""Histogram of `Measures` -> metric."""

Series = tuple[str, tuple[str, ...]]
"""A metric's name, and values for its labels."""

_DROPPED, _LOST = "forebay_micro_batches_dropped_total", "forebay_micro_batches_lost_total"

COUNTERS: Final[Mapping[str, Series]] = {
    "published": ("forebay_micro_batches_published_total", ()),
    "published_bytes": ("forebay_published_bytes_total", ()),
    "finished_consumed": ("forebay_micro_batches_consumed_total", ()),
    **{f"dropped_{reason}": (_DROPPED, (reason.value,)) for reason in DROPPED_BY},
    **{f"dropped_stale_{why}": (_DROPPED, (f"stale_{why}",)) for why in STALE_BY},
    **{f"lost_{reason}": (_LOST, (reason.value,)) for reason in LOST_BY},
    **{f"offered_stale_{why}": ("forebay_stale_offers_total", (why,)) for why in STALE_BY},
    **{f"refused_{code}": ("forebay_refusals_total", (code.value,)) for code in RefusalCode},
    "late_releases": ("forebay_late_releases_total", ()),
    "eager_body_bytes": ("forebay_offer_body_bytes_total", ()),
    "eager_body_wrong": ("forebay_offer_bodies_wrong_total", ()),
    **{fault.value: ("forebay_chunk_faults_total", (fault.removeprefix("chunk_"),)) for fault in ChunkFault},
    **{f"handshake_failed_{why}": ("forebay_handshake_failures_total", (why,)) for why in HANDSHAKE_FAILURES},
}
"""Counter of the status -> the series that tells it; those of `SUMS` are told by several others together."""

SUMS: Final[Mapping[str, str]] = {"finished_dropped": _DROPPED, "finished_lost": _LOST}
"""Counter of the status -> the metric whose series make it up."""
