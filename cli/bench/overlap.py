"""`forebay bench overlap`: the stage-ahead loop."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from forebay.benchmarks.overlap_result import OverlapBenchResult, OverlapBenchSettings

from ..needs import need_jax
from .shared import WARM_MEMORY, Json, PayloadMib, Timeline, interruptible, print_timeline_file, tell


def overlap(
    payload_mib: PayloadMib = 48.0,
    compute_s: Annotated[float, typer.Option(help="seconds of compute of a micro-batch; the rest scales")] = 0.5,
    steps: Annotated[int, typer.Option(help="steps of a run, of nine micro-batches each")] = 6,
    wire: Annotated[list[str] | None, typer.Option(help="steady, compressed or trace; default all three")] = None,
    timeline: Timeline = None,
    json: Json = False,
) -> None:
    """The stage-ahead loop beside what a model allows.

    Inline, within the step, and across its boundary, each on three wires.
    """
    from forebay.benchmarks.overlap_bench import run
    from forebay.orchestrator_client.timeline import check_timeline

    need_jax("bench overlap")
    given: dict[str, Any] = {"wires": tuple(wire)} if wire else {}
    settings = OverlapBenchSettings(payload_mib=payload_mib, compute_s=compute_s, steps=steps, **given)
    if timeline is not None:
        check_timeline(timeline)
    with interruptible():
        result = run(settings, timeline, WARM_MEMORY)
    tell(result, json, _print_table)


def _print_table(result: OverlapBenchResult, console: Console) -> None:
    table = Table(box=None)
    for name in ("wire", "schedule"):
        table.add_column(name, no_wrap=True)
    for name in ("total s", "floor s", "ratio", "idle %", "floor %", "after\nfill %", "fell\nback"):
        table.add_column(name, justify="right")
    for row in result.rows:
        table.add_row(
            row.wire,
            row.schedule,
            f"{row.total_s:.2f}",
            f"{row.floor_s:.2f}",
            f"{row.over_floor:.3f}",
            f"{100 * row.idle:.1f}",
            f"{100 * row.floor_idle:.1f}",
            f"{100 * row.idle_after_fill:.2f}",
            str(row.fallbacks),
        )
    console.print(table)
    settings = result.settings
    console.print(
        "ratio: total over floor; floor: what a model allows; after fill: idle after the very first wait;\n"
        "fell back: micro-batches that went inline though they were to be staged\n"
        f"{settings.steps} steps of 9 micro-batches of {settings.payload_mib:g} MiB, compute"
        f" {settings.compute_s:g} s each, on {result.device}\n"
        f"compute: {result.compute}\nwire: {result.wire}\ncopy: {result.copy}\nmemory: {result.memory}"
    )
    print_timeline_file(console, result.timeline)
