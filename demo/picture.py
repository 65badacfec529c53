"""Where each run's time went, as one picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from forebay.orchestrator_client import Bar, draw

from .result import DemoResult, DemoRun
from .settings import Mode

LANES: Final = ("pull", "stage", "wait", "dispatch", "device")
_MEANING: Final = {
    Mode.OFF: "nothing is staged, bytes come with the call",
    Mode.SERIALIZE: "staged on the host; copied when the device is free",
    Mode.STAGE: "staged and copied while the device computes",
}


def draw_runs(runs: Sequence[DemoRun], file: Path) -> None:
    """Draws runs one above the other on the same scale, with a mark where each step but the first begins.

    Raises:
        SettingError: The file cannot be written.
    """
    pictures = [(_title(run.result), tuple(_bars(run))) for run in runs]
    draw(pictures, file, lanes=LANES, marks=[[step.began_at for step in run.steps[1:]] for run in runs])


def _title(result: DemoResult) -> str:
    return (
        f"{result.mode}: {_MEANING[result.mode]}: {result.seconds_a_step:.2f} s a step,"
        f" device idle {100 * result.idle_fraction:.1f} %"
    )


def _bars(run: DemoRun) -> Iterator[Bar]:
    for step in run.steps:
        for bar in step.spans:
            # Its place in the step: short enough to stand in a bar.
            yield dataclasses.replace(bar, key=str(int(bar.key.rpartition("/")[2])))
