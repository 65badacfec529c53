"""A trace as a picture, in the look of all timelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from forebay.orchestrator_client.timeline import Bar, draw
from forebay.wire import Event, UsageError, printable
from forebay.wire.lives import Phase

from .excerpt import Excerpt
from .lanes import lanes_for
from .spans import PHASE_NAMES

_MARKED: Final = frozenset({Event.ATTACH, Event.DETACH, Event.DRAIN, Event.PAUSE, Event.RESUME, Event.QUARANTINED})


def draw_trace(excerpt: Excerpt, merged: Mapping[str, Sequence[Bar]], title: str, file: Path) -> None:
    """Draws who had which micro-batch and when; trainers that come or go and an operator's orders are dashed.

    Raises:
        UsageError: There is nothing to draw.
        SettingError: matplotlib is missing, or the file cannot be written.
    """
    bars, lanes = _beside([*_phase_bars(excerpt), *(bar for own in merged.values() for bar in own)])
    if not bars:
        raise UsageError("nothing to draw: the daemon tells of no micro-batch", remedy="stage one first")
    marks = [moment.at_s for moment in excerpt.incidents if moment.event in _MARKED]
    draw([(title, bars)], file, lanes=lanes, marks=[marks])


def _phase_bars(excerpt: Excerpt) -> Iterator[Bar]:
    for phase in Phase:
        for life in excerpt.lives:
            for span in life.spans:
                if span.phase is phase:
                    yield Bar(PHASE_NAMES[phase], printable(life.key), span.began_at, span.ended_at)


def _beside(bars: Iterable[Bar]) -> tuple[list[Bar], list[str]]:
    """Gives each lane as many lines as it has bars at a time; returns the bars on them, and the lines."""
    by_lane: dict[str, list[Bar]] = {}
    for bar in bars:
        by_lane.setdefault(bar.lane, []).append(bar)
    placed: list[Bar] = []
    lanes: dict[str, None] = {}
    for lane, own in by_lane.items():
        numbers = lanes_for([(bar.began_at, bar.ended_at) for bar in own])
        names = [f"{printable(lane)} {number + 1}" if number else printable(lane) for number in numbers]
        lanes |= dict.fromkeys(sorted(set(names), key=lambda name: (len(name), name)))
        placed += [
            Bar(name, printable(bar.key), bar.began_at, bar.ended_at) for name, bar in zip(names, own, strict=True)
        ]
    return placed, list(lanes)
