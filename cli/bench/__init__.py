"""`forebay bench`: benchmarks whose claims are ratios and counts within one run, one module a command."""

from __future__ import annotations

import typer

from .all import all_benchmarks
from .codecs import codecs
from .handoff import handoff
from .idle import idle
from .ingest import ingest
from .overlap import overlap
from .queue import queue
from .small import small
from .soak import soak

__all__ = ["bench"]

bench = typer.Typer(
    help="Run benchmarks; progress goes to standard error.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
for _command in (queue, overlap, ingest, codecs, handoff, small, idle, soak):
    bench.command(_command.__name__)(_command)
bench.command("all")(all_benchmarks)
