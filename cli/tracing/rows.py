"""The rows of a trace: what a viewer calls processes and threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from forebay.wire import Status, printable

TraceEvent = dict[str, Any]
_KINDS: Final = ("orchestrator", "daemon", "slots", "trainer", "file")
"""From the top of a trace to its bottom."""


class Row(NamedTuple):
    """One row, which has as many lanes as it takes.

    Attributes:
        kind: What its process is.
        process: What that is called.
        thread: What the row is called.
    """

    kind: str
    process: str
    thread: str


class Rows:
    """Processes and threads of a trace: what a viewer calls its rows."""

    def __init__(self) -> None:
        self._pids: dict[tuple[str, str], int] = {}
        self._tids: dict[tuple[int, str, int], int] = {}

    def place(self, row: Row, lane: int = 0) -> TraceEvent:
        """Returns the fields that place an event in one of a row's lanes."""
        pid = self._pids.setdefault((row.kind, row.process), len(self._pids) + 1)
        tid = self._tids.setdefault((pid, row.thread, lane), len(self._tids) + 1)
        return {"pid": pid, "tid": tid}

    def names(self) -> Iterator[TraceEvent]:
        """Yields what tells a viewer how the rows are called, and in which order they stand."""
        for (kind, process), pid in self._pids.items():
            yield _named("process_name", pid, 0, name=process)
            yield _named("process_sort_index", pid, 0, sort_index=_KINDS.index(kind))
        # Slot 10 stands below slot 9, and the events above all else.
        threads = sorted(self._tids.items(), key=lambda item: (len(item[0][1]), item[0]))
        for place, ((pid, thread, lane), tid) in enumerate(threads):
            yield _named("thread_name", pid, tid, name=f"{thread} {lane + 1}" if lane else thread)
            yield _named("thread_sort_index", pid, tid, sort_index=place)


def _named(what: str, pid: int, tid: int, **args: Any) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def daemon_row(status: Status, thread: str) -> Row:
    """Returns one of the daemon's rows."""
    return Row("daemon", daemon_name(status), thread)


def daemon_name(status: Status) -> str:
    """Names the daemon."""
    return f"daemon {status.peer.pid} on {printable(status.peer.host)}"


def peer_row(kind: str, who: str, thread: str) -> Row:
    """Returns one of an orchestrator's or trainer's rows; `who` is empty where that is not known."""
    return Row(kind, f"{kind} {printable(who)}" if who else f"{kind}, not known which", thread)


def in_us(at_s: float) -> int:
    """Turns seconds into a trace's microseconds; whole ones, so that what meets in time still meets."""
    return round(at_s * 1e6)
