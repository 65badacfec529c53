"""`forebay bench handoff`: from a published micro-batch to numpy views in the trainer."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from forebay.benchmarks.handoff_result import HandoffBenchResult, HandoffBenchSettings

from ..needs import need_jax
from .shared import Json, interruptible, print_figures, tell


def handoff(
    small_mib: Annotated[float, typer.Option(help="MiB of the small micro-batches")] = 0.0625,
    small_count: Annotated[int, typer.Option(help="hand-overs of those")] = 1000,
    large_mib: Annotated[float, typer.Option(help="MiB of the large micro-batches")] = 1024.0,
    large_count: Annotated[int, typer.Option(help="hand-overs of those")] = 40,
    json: Json = False,
) -> None:
    """From a published micro-batch to views in the trainer."""
    from forebay.benchmarks.handoff_bench import run

    need_jax("bench handoff")
    settings = HandoffBenchSettings(
        small_mib=small_mib, small_count=small_count, large_mib=large_mib, large_count=large_count
    )
    with interruptible():
        result = run(settings)
    tell(result, json, _print_table)


def _print_table(result: HandoffBenchResult, console: Console) -> None:
    table = Table(box=None)
    for name in ("MiB", "hand-\novers", "p50 us", "p99 us", "max us", "take\np50 us", "take\np99 us", "CPU ms"):
        table.add_column(name, justify="right")
    for row in (result.small, result.large):
        times = (row.p50_us, row.p99_us, row.max_us, row.take_p50_us, row.take_p99_us)
        table.add_row(
            f"{row.payload_bytes / (1 << 20):.4g}",
            str(row.count),
            *(f"{time_us:.0f}" for time_us in times),
            f"{row.trainer_cpu_ms:.2f}",
        )
    console.print(table)
    rows = (
        ("equal", f"{result.equal:.2f}", "one size's median over the other's"),
        ("trainer_cpu_s_per_gb", f"{result.trainer_cpu_s_per_gb:.4f}", "in large micro-batches"),
    )
    print_figures(console, rows)
    console.print(
        f"CPU: of the trainer, a hand-over\nmeasured: {result.measured}\ncopy to the device: {result.copy}"
    )
