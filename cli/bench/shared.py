"""What the commands of `forebay bench` share: options, tables, and how they end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from forebay.wire import ExitCode
from forebay.wire.plain_json import json_line

R = TypeVar("R")

WARM_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
"""Has glibc keep what is freed; the result says so.

On a CPU the "device's" memory comes from there, and pages that were never touched cost several times the copy. A
real device's allocator keeps its memory as well.
"""

PayloadMib = Annotated[float, typer.Option(help="MiB of a micro-batch")]
Timeline = Annotated[Path | None, typer.Option(help="PNG to draw a timeline into")]
Json = Annotated[bool, typer.Option("--json", help="end with one JSON object on standard output")]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ends the command with the exit code of an interruption when it is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def tell(result: R, as_json: bool, print_table: Callable[[R, Console], None]) -> None:
    """Prints a result to standard output, as a table or as one line of JSON."""
    if as_json:
        sys.stdout.write(json_line(result))
    else:
        print_table(result, Console(highlight=False))


def print_figures(console: Console, rows: Iterable[tuple[str, str, str]]) -> None:
    """Prints rows of a figure's name, its value and what it means."""
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_timeline_file(console: Console, timeline: str | None) -> None:
    """Says where the picture lies, if one was drawn."""
    if timeline is not None:
        console.print(f"timeline in {timeline}", markup=False, soft_wrap=True)
