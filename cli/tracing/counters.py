"""How many micro-batches were READY and how many slots FREE, as events of a trace."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from forebay.wire import Status, printable
from forebay.wire.lives import End, Life, Past, Phase, Span

from .excerpt import Excerpt
from .rows import Rows, TraceEvent, daemon_row, in_us


def counter_events(excerpt: Excerpt, rows: Rows, status: Status) -> Iterator[TraceEvent]:
    """Yields how many are READY in each queue and how many slots are FREE, at first and whenever that changes."""
    place = rows.place(daemon_row(status, "events"))
    since = in_us(excerpt.began_at)
    counted = [(max(at, since), ready, free) for at, ready, free in _counts(excerpt.past, status)]
    # Of all that was so before the excerpt, what was so last.
    for index, (at, ready, free) in enumerate(counted):
        if index + 1 == len(counted) or counted[index + 1][0] > at:
            yield {"ph": "C", "name": "READY micro-batches", "ts": at, **place, "args": ready}
            yield {"ph": "C", "name": "FREE slots", "ts": at, **place, "args": {"FREE": free}}


def _counts(past: Past, status: Status) -> Iterator[tuple[int, dict[str, int], int]]:
    """Yields from when on how many are READY in each queue, and how many slots are FREE."""
    ready, used = _never_told(past, status)
    changes = sorted(_changes(past.lives), key=lambda change: change[0])
    for at, group in itertools.groupby(changes, key=lambda change: change[0]):
        for _, by, life, span in group:
            used += by
            if span.phase is Phase.READY:
                ready[printable(life.queue)] += by
        yield at, dict(ready), len(status.slots) - used


def _changes(lives: Iterable[Life]) -> Iterator[tuple[int, int, Life, Span]]:
    for life in lives:
        for span in life.spans:
            if span.slot >= 0:
                yield in_us(span.began_at), 1, life, span
                if span.end is not End.OPEN:
                    yield in_us(span.ended_at), -1, life, span


def _never_told(past: Past, status: Status) -> tuple[Counter[str], int]:
    """Counts what has been in its slot for so long that no moment tells of it: READY in each queue, and all."""
    told = {(span.slot, span.generation) for life in past.lives for span in life.spans}
    silent = [
        slot
        for slot in status.slots
        # What is FILLING without bytes to come is a slot that grows; the history does not count that either.
        if slot.state not in ("FREE", "FILLING") and (slot.index, slot.generation) not in told
    ]
    ready = Counter(dict.fromkeys((printable(life.queue) for life in past.lives), 0))
    ready.update(printable(slot.queue) for slot in silent if slot.state == "READY")
    return ready, len(silent)
