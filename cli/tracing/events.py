"""Micro-batches' lives in the trace event format, which Perfetto and chrome://tracing open.

Source: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from forebay.orchestrator_client.timeline import Bar
from forebay.wire import Event, Status, printable

from .counters import counter_events
from .excerpt import Excerpt
from .lanes import lanes_for
from .rows import Row, Rows, TraceEvent, daemon_name, daemon_row, in_us
from .spans import span_events

_FOR_ALL: Final = frozenset({Event.DRAIN, Event.PAUSE, Event.RESUME})
"""Incidents that concern every row."""


def trace_of(excerpt: Excerpt, status: Status, merged: Mapping[str, Sequence[Bar]]) -> dict[str, Any]:
    """Makes a trace: a JSON object.

    Args:
        excerpt: What it shows.
        status: The daemon's, as it was asked for before its history.
        merged: By a name, bars that others made with the clock of this host.
    """
    rows = Rows()
    events = [
        *span_events(excerpt.lives, rows, status),
        *_incidents(excerpt, rows, status),
        *counter_events(excerpt, rows, status),
        *_merged(merged, rows),
    ]
    # Of what begins in a row at one time, what is over at once comes first, and an arrow finds what lasts.
    events.sort(key=lambda event: (event["ts"], event["ph"] in "stf", event.get("dur", 0)))
    return {
        "traceEvents": [*rows.names(), *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "daemon": daemon_name(status),
            "version": printable(status.software),
            "clock": "CLOCK_MONOTONIC of the daemon's host, in microseconds",
            "micro_batches": len(excerpt.lives),
        },
    }


def _incidents(excerpt: Excerpt, rows: Rows, status: Status) -> Iterator[TraceEvent]:
    place = rows.place(daemon_row(status, "events"))
    for moment in excerpt.incidents:
        told = {"key": moment.key, "queue": moment.queue, "who": moment.who, "words": moment.words}
        yield {
            "ph": "i",
            "s": "g" if moment.event in _FOR_ALL else "t",
            "name": printable(moment.event),
            "cat": "event",
            "ts": in_us(moment.at_s),
            **place,
            "args": {name: printable(words) for name, words in told.items() if words},
        }


def _merged(merged: Mapping[str, Sequence[Bar]], rows: Rows) -> Iterator[TraceEvent]:
    for name, bars in merged.items():
        by_lane: dict[str, list[Bar]] = {}
        for bar in bars:
            by_lane.setdefault(bar.lane, []).append(bar)
        for lane, own in by_lane.items():
            numbers = lanes_for([(bar.began_at, bar.ended_at) for bar in own])
            for bar, number in zip(own, numbers, strict=True):
                yield _bar(bar, rows.place(Row("file", printable(name), printable(lane)), number))


def _bar(bar: Bar, place: TraceEvent) -> TraceEvent:
    return {
        "ph": "X",
        "name": f"{printable(bar.lane)} {printable(bar.key)}",
        "cat": "merged",
        "ts": in_us(bar.began_at),
        "dur": in_us(bar.ended_at) - in_us(bar.began_at),
        **place,
        "args": {"key": printable(bar.key)},
    }
