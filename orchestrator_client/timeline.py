"""A run as a picture: who was busy with which micro-batch, and when."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from forebay.wire import SettingError, UsageError

LANES: Final = (
    *("pull", "stage", "stage_batch", "transfer"),
    *("wait", "dispatch", "fwd_bwd", "device"),
)
"""The known ones, from the first thing that happens to a micro-batch to the last; others come below."""
_WIDTH_INCHES: Final = 11
_TITLE_INCHES: Final = 0.7
_LANE_INCHES: Final = 0.3
_DOTS_PER_INCH: Final = 110
_SECONDS_FROM_S: Final = 10.0
_FONT_POINTS: Final = 8
_NARROWEST_LABELED: Final = 0.02
_CHAR_WIDTH: Final = 0.007
"""Of a label's letter, as a share of the picture's width."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """Somebody was busy with a micro-batch.

    Attributes:
        lane: Who; one of `LANES`, or any other name.
        key: The micro-batch's.
        began_at: Monotonic second.
        ended_at: Monotonic second.
    """

    lane: str
    key: str
    began_at: float
    ended_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Scale:
    """From monotonic seconds to the picture's axis, the same for all runs.

    Attributes:
        unit: Of the axis.
        per_s: Units in a second.
        longest_s: Seconds of the longest run.
    """

    unit: str
    per_s: float
    longest_s: float

    @classmethod
    def of(cls, runs: Sequence[tuple[str, Sequence[Bar]]]) -> _Scale:
        longest_s = max(max(bar.ended_at for bar in bars) - _start_of(bars) for _, bars in runs)
        return cls("s", 1.0, longest_s) if longest_s > _SECONDS_FROM_S else cls("ms", 1000.0, longest_s)

    def label_of(self, bar: Bar) -> str:
        """Returns what can be read inside of a bar: its key, or the key's last part, or nothing."""
        share = (bar.ended_at - bar.began_at) / self.longest_s if self.longest_s else 0.0
        for label in (bar.key, bar.key.rpartition("/")[2]):
            if share >= max(_NARROWEST_LABELED, _CHAR_WIDTH * len(label)):
                return label
        return ""


def import_pyplot() -> Any:
    """Imports matplotlib for drawing into files.

    Raises:
        SettingError: It is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise SettingError("a timeline needs matplotlib", remedy="pip install 'forebay[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def check_timeline(file: Path, option: str = "--timeline") -> None:
    """Checks that a picture can be drawn, before anything runs for it.

    Args:
        file: Where.
        option: Whose value that is, for the error.

    Raises:
        SettingError: matplotlib is not installed, or the file cannot be written.
    """
    if file.suffix != ".png" or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise SettingError(f"option {option}", got=str(file), limit="a .png file in a writable folder")
    import_pyplot()


def draw(
    runs: Sequence[tuple[str, Sequence[Bar]]],
    file: Path,
    *,
    lanes: Sequence[str] | None = None,
    marks: Sequence[Sequence[float]] | None = None,
) -> None:
    """Draws runs one above the other, on the same scale of time: seconds if one is longer than ten, else ms.

    A bar's key, or its part after the last slash, is written into it where there is room.

    Args:
        runs: A title and the bars of each, at least one.
        file: PNG to write.
        lanes: From top to bottom, all that occur; default the known ones first, then others as they appear.
        marks: For each run, the monotonic seconds at which to draw a dashed line, such as its steps' boundaries.

    Raises:
        UsageError: A run has no bars, a bar's lane is not among those given, or the marks are for other runs.
        SettingError: matplotlib is not installed, or the file cannot be written.
    """
    lanes = lanes_of(runs, lanes)
    marks = [()] * len(runs) if marks is None else marks
    _check(runs, marks)
    pyplot = import_pyplot()
    scale = _Scale.of(runs)
    size = (_WIDTH_INCHES, (_TITLE_INCHES + _LANE_INCHES * len(lanes)) * len(runs))
    figure, axes = pyplot.subplots(len(runs), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    colors = pyplot.get_cmap("tab10").colors
    for (title, bars), moments, axis in zip(runs, marks, axes[:, 0], strict=True):
        _draw_bars(axis, bars, lanes, scale, colors)
        _draw_marks(axis, moments, _start_of(bars), scale)
        axis.set_title(title, fontsize=9, loc="left")
    axes[-1, 0].set_xlabel(scale.unit)
    try:
        figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    except (OSError, ValueError) as error:
        raise SettingError(f"the timeline {file} cannot be written", got=error) from error
    finally:
        pyplot.close(figure)


def lanes_of(runs: Sequence[tuple[str, Sequence[Bar]]], lanes: Sequence[str] | None = None) -> tuple[str, ...]:
    """Returns the picture's lanes from top to bottom: those given, or those that occur.

    Raises:
        UsageError: A bar's lane is not among those given.
    """
    seen = dict.fromkeys(bar.lane for _, bars in runs for bar in sorted(bars, key=_began_at))
    if lanes is None:
        return tuple(lane for lane in LANES if lane in seen) + tuple(lane for lane in seen if lane not in LANES)
    for lane in seen:
        if lane not in lanes:
            raise UsageError("a bar's lane is not in the picture", got=lane, limit=", ".join(lanes))
    return tuple(lanes)


def _check(runs: Sequence[tuple[str, Sequence[Bar]]], marks: Sequence[Sequence[float]]) -> None:
    if not runs or not all(bars for _, bars in runs):
        raise UsageError("a timeline needs bars", got=[title for title, bars in runs if not bars])
    if len(marks) != len(runs):
        raise UsageError("each run of a timeline has marks of its own", got=len(marks), limit=f"{len(runs)} runs")


def _draw_bars(axis: Any, bars: Sequence[Bar], lanes: Sequence[str], scale: _Scale, colors: Sequence[Any]) -> None:
    start = _start_of(bars)
    rows = {lane: row for row, lane in enumerate(lanes)}
    keys = dict.fromkeys(bar.key for bar in sorted(bars, key=_began_at))
    color_of = {key: colors[number % len(colors)] for number, key in enumerate(keys)}
    for bar in bars:
        left, width = (bar.began_at - start) * scale.per_s, (bar.ended_at - bar.began_at) * scale.per_s
        row = rows[bar.lane]
        axis.barh(row, width, left=left, height=0.7, color=color_of[bar.key], edgecolor="black", lw=0.4)
        label = scale.label_of(bar)
        if label:
            axis.text(left + width / 2, row, label, ha="center", va="center", fontsize=_FONT_POINTS)
    axis.set_yticks(range(len(lanes)), lanes)
    axis.set_ylim(len(lanes) - 0.5, -0.5)


def _draw_marks(axis: Any, moments: Sequence[float], start: float, scale: _Scale) -> None:
    for moment in moments:
        axis.axvline((moment - start) * scale.per_s, color="black", linestyle="--", lw=0.8)


def _start_of(bars: Sequence[Bar]) -> float:
    return min(bar.began_at for bar in bars)


def _began_at(bar: Bar) -> float:
    return bar.began_at
