"""What each micro-batch was at, as events of a trace."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from forebay.wire import Status, printable
from forebay.wire.lives import END_MEANINGS, End, Life, Phase, Span, in_slots

from .lanes import lanes_for
from .rows import Row, Rows, TraceEvent, daemon_row, in_us, peer_row

PHASE_NAMES: Final = {
    Phase.WAITING: "wait for a slot",
    Phase.FILLING: "fill",
    Phase.READY: "ready",
    Phase.LENT: "lent",
    Phase.QUARANTINED: "quarantined",
    Phase.ON_DEVICE: "on device",
}
_FROM_ORCHESTRATOR: Final = frozenset({Phase.WAITING, Phase.FILLING})
_WITH_TRAINER: Final = frozenset({Phase.LENT, Phase.QUARANTINED, Phase.ON_DEVICE})
_FORGOTTEN: Final = "it began before; the history has forgotten when"


@dataclasses.dataclass(frozen=True, slots=True)
class _Stretch:
    """Spans of one life that stand in one row, one after another."""

    life: Life
    spans: tuple[Span, ...]
    row: Row

    @property
    def interval(self) -> tuple[float, float]:
        return self.spans[0].began_at, self.spans[-1].ended_at


def span_events(lives: Sequence[Life], rows: Rows, status: Status) -> Iterator[TraceEvent]:
    """Yields what each micro-batch was at, in the rows of who had it and of its slot, and arrows along its way."""
    stretches = [stretch for life in lives for stretch in _stretches(life, status)]
    stretches.sort(key=lambda stretch: stretch.row)
    hops: dict[int, list[tuple[float, TraceEvent]]] = {}
    for row, group in itertools.groupby(stretches, key=lambda stretch: stretch.row):
        together = list(group)
        for stretch, lane in zip(together, lanes_for([each.interval for each in together]), strict=True):
            place = rows.place(row, lane)
            yield from (_span(stretch.life, span, place) for span in stretch.spans)
            hops.setdefault(stretch.life.number, []).extend(_hops(stretch, place))
    yield from _in_slots(lives, rows)
    for number, way in hops.items():
        yield from _flow(number, sorted(way, key=lambda hop: hop[0]))


def _stretches(life: Life, status: Status) -> Iterator[_Stretch]:
    for row, spans in itertools.groupby(life.spans, key=lambda span: _row_of(life, span, status)):
        yield _Stretch(life, tuple(spans), row)


def _row_of(life: Life, span: Span, status: Status) -> Row:
    if span.phase in _FROM_ORCHESTRATOR:
        return peer_row("orchestrator", life.sender, f"stages for {printable(life.queue)}")
    if span.phase in _WITH_TRAINER:
        return peer_row("trainer", span.trainer, f"trains {printable(life.queue)}")
    return daemon_row(status, f"ready in {printable(life.queue)}")


def _in_slots(lives: Sequence[Life], rows: Rows) -> Iterator[TraceEvent]:
    for slot, row in sorted(in_slots(lives).items()):
        place = rows.place(Row("slots", "slots", f"slot {slot}"))
        yield from (_span(life, span, place) for life, span in row)


def _span(life: Life, span: Span, place: TraceEvent) -> TraceEvent:
    ts = in_us(span.began_at)
    cut = not span.is_begin_known or span.end is not End.KNOWN
    return {
        "ph": "X",
        "name": f"{PHASE_NAMES[span.phase]} {printable(life.key)}",
        "cat": "cut" if cut else "phase",
        "ts": ts,
        "dur": in_us(span.ended_at) - ts,
        **place,
        "args": _told(life, span),
    }


def _told(life: Life, span: Span) -> dict[str, Any]:
    told = {
        "key": printable(life.key),
        "queue": printable(life.queue),
        "bytes": life.payload_bytes,
        "policy_version": life.policy_version,
        "slot": span.slot if span.slot >= 0 else None,
        "generation": span.generation or None,
        "begin": None if span.is_begin_known else _FORGOTTEN,
        "end": None if span.end is End.KNOWN else END_MEANINGS[span.end],
        "outcome": life.outcome or None,
        "reason": printable(life.reason) or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _hops(stretch: _Stretch, place: TraceEvent) -> Iterator[tuple[float, TraceEvent]]:
    """Yields where an arrow may touch a stretch; what takes no time cannot be touched."""
    lasting = [span for span in stretch.spans if in_us(span.ended_at) > in_us(span.began_at)]
    touched = lasting[:1]
    if stretch.row.kind == "trainer":
        touched += [span for span in lasting[1:] if span.phase is Phase.ON_DEVICE]
    return ((span.began_at, place) for span in touched)


def _flow(number: int, way: Sequence[tuple[float, TraceEvent]]) -> Iterator[TraceEvent]:
    for index, (at_s, place) in enumerate(way if len(way) > 1 else ()):
        kind = "s" if index == 0 else "f" if index == len(way) - 1 else "t"
        bound = {"bp": "e"} if kind == "f" else {}
        common = {"name": "micro-batch", "cat": "flow", "id": number}
        yield {"ph": kind, "ts": in_us(at_s), **place, **common, **bound}
