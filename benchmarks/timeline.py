"""A run of the staging queue as a picture: who was busy with which micro-batch, and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from forebay.wire import SettingError

LANES: Final = ("stage_batch", "transfer", "fwd_bwd", "device")
"""From the first thing that happens to a micro-batch to the last."""
_INCHES: Final = (11, 1.9)
_DOTS_PER_INCH: Final = 110


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """Somebody was busy with a micro-batch.

    Attributes:
        lane: One of `LANES`.
        key: The micro-batch's.
        began_at: Monotonic second.
        ended_at: Monotonic second.
    """

    lane: str
    key: str
    began_at: float
    ended_at: float


def import_pyplot() -> Any:
    """Imports matplotlib for drawing into files.

    Raises:
        SettingError: It is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise SettingError("a timeline needs matplotlib", remedy="pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(runs: Sequence[tuple[str, Sequence[Bar]]], file: Path) -> None:
    """Draws runs one above the other, on the same scale of time.

    Args:
        runs: A title and the bars of each.
        file: PNG to write.

    Raises:
        SettingError: matplotlib is not installed, or the file cannot be written.
    """
    pyplot = import_pyplot()
    size = (_INCHES[0], _INCHES[1] * len(runs))
    figure, axes = pyplot.subplots(len(runs), 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    colors = pyplot.get_cmap("tab10").colors
    for (title, bars), axis in zip(runs, axes[:, 0], strict=True):
        start = min(bar.began_at for bar in bars)
        keys = list(dict.fromkeys(bar.key for bar in sorted(bars, key=lambda bar: bar.began_at)))
        for bar in bars:
            left, width = (bar.began_at - start) * 1000, (bar.ended_at - bar.began_at) * 1000
            color = colors[keys.index(bar.key) % len(colors)]
            axis.barh(LANES.index(bar.lane), width, left=left, height=0.7, color=color, edgecolor="black", lw=0.4)
            if bar.lane == "device":
                axis.text(left + width / 2, LANES.index(bar.lane), bar.key, ha="center", va="center", fontsize=8)
        axis.set_yticks(range(len(LANES)), LANES)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9, loc="left")
    axes[-1, 0].set_xlabel("ms")
    try:
        figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    except (OSError, ValueError) as error:
        raise SettingError(f"the timeline {file} cannot be written", got=error) from error
    finally:
        pyplot.close(figure)
