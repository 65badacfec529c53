"""The rules of the trace event format, strictly: what breaks one may still be shown by some viewer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]

FIELDS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "cat", "ph", "ts", "pid", "tid", "args", "s"},
    "C": {"name", "ph", "ts", "pid", "tid", "args"},
    "M": {"name", "ph", "ts", "pid", "tid", "args"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "t": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
}
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def check_trace(trace: dict[str, Any]) -> list[Event]:
    """Asserts that a trace is one; returns its events."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert isinstance(trace["otherData"], dict)
    events: list[Event] = trace["traceEvents"]
    for event in events:
        _check_event(event)
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    _check_names(events)
    _check_rows(events)
    _check_flows(events)
    return events


def of_kind(events: Sequence[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event["ph"] in kinds]


def _check_event(event: Event) -> None:
    assert set(event) == FIELDS[event["ph"]], event
    for name in ("ts", "pid", "tid"):
        assert isinstance(event[name], int), event
        assert event[name] >= 0, event
    assert isinstance(event["name"], str), event
    assert event["name"].isprintable(), event
    match event["ph"]:
        case "X":
            assert event["dur"] >= 0, event
        case "i":
            assert event["s"] in ("g", "p", "t"), event
        case "C":
            assert event["args"], event
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values()), event
        case "M":
            name, kind = METADATA[event["name"]]
            assert isinstance(event["args"][name], kind), event
        case "f":
            assert event["bp"] == "e", event


def _check_names(events: Sequence[Event]) -> None:
    """Asserts that each process and thread is named once, and that no two of a process have the same name."""
    named = [event for event in events if event["name"] == "process_name"]
    assert len({event["pid"] for event in named}) == len(named)
    threads = [event for event in events if event["name"] == "thread_name"]
    assert len({event["tid"] for event in threads}) == len(threads)
    assert len({(event["pid"], event["args"]["name"]) for event in threads}) == len(threads)
    for event in events:
        assert event["pid"] in {process["pid"] for process in named}, event
        assert event["ph"] == "M" or (event["pid"], event["tid"]) in {(of["pid"], of["tid"]) for of in threads}


def _check_rows(events: Sequence[Event]) -> None:
    """Asserts that no two spans of a row overlap."""
    rows: dict[tuple[int, int], list[Event]] = {}
    for event in of_kind(events, "X"):
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for row in rows.values():
        for before, after in itertools.pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"], (before, after)


def _check_flows(events: Sequence[Event]) -> None:
    """Asserts that each arrow has one beginning, one end, and touches a span at each of its points."""
    flows: dict[int, list[Event]] = {}
    for event in of_kind(events, "s", "t", "f"):
        flows.setdefault(event["id"], []).append(event)
    spans = of_kind(events, "X")
    for way in flows.values():
        kinds = "".join(event["ph"] for event in way)
        assert kinds == f"s{'t' * (len(way) - 2)}f", way
        for point in way:
            place = point["pid"], point["tid"]
            assert any(
                (span["pid"], span["tid"]) == place and span["ts"] <= point["ts"] < span["ts"] + span["dur"]
                for span in spans
            ), point
