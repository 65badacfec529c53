"""`forebay bench all`: every benchmark of the data's way, and what was to be reached."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from forebay.benchmarks.goals import GOALS

from ..needs import need_jax
from .shared import Json, interruptible, tell


def all_benchmarks(
    only: Annotated[list[str] | None, typer.Option(help="run just these; may be repeated")] = None,
    json: Json = False,
) -> None:
    """All of the data's way, one after another; some minutes.

    That is ingest, codecs, handoff, small and idle.
    """
    from forebay.benchmarks.all_bench import BENCHMARKS, WITH_TRAINER, run

    names = tuple(only or BENCHMARKS)
    if not WITH_TRAINER.isdisjoint(names):
        need_jax("bench all")
    with interruptible():
        results = run(names)
    tell(results, json, _print_table)


def _print_table(results: dict[str, Any], console: Console) -> None:
    table = Table(box=None)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("to reach")
    table.add_column("")
    for goal in GOALS:
        value = goal.value(results)
        if value is not None:
            table.add_row(goal.key, f"{value:.4g}", goal.bounds, "" if goal.is_reached(value) else "missed")
    console.print(table)
    machine = results["machine"]
    console.print(
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB, Linux"
        f" {machine['kernel']}\n{results['date']}, {results['took_s']:g} s"
    )
