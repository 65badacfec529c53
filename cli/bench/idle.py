"""`forebay bench idle`: what the processes cost while nothing flows."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from forebay.benchmarks.idle_result import IdleBenchResult, IdleBenchSettings

from ..needs import need_jax
from .shared import Json, interruptible, print_figures, tell


def idle(
    settle_s: Annotated[float, typer.Option(help="seconds before the measurement")] = 1.0,
    idle_s: Annotated[float, typer.Option(help="seconds that are measured")] = 10.0,
    json: Json = False,
) -> None:
    """What the processes cost while nothing flows."""
    from forebay.benchmarks.idle_bench import run

    need_jax("bench idle")
    settings = IdleBenchSettings(settle_s=settle_s, idle_s=idle_s)
    with interruptible():
        result = run(settings)
    tell(result, json, _print_table)


def _print_table(result: IdleBenchResult, console: Console) -> None:
    rows = [("cpu_fraction", f"{result.cpu_fraction:.5f}", "of the process that uses most")]
    rows += [("", f"{fraction:.5f}", name) for name, fraction in result.cpu_fractions.items()]
    print_figures(console, rows)
    console.print(f"over {result.idle_s:.1f} s, in which {result.state}")
