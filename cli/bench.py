"""`forebay bench`: benchmarks whose claims are ratios and counts within one run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from forebay.benchmarks.overlap_bench import run as run_overlap
from forebay.benchmarks.overlap_result import OverlapBenchResult, OverlapBenchSettings
from forebay.benchmarks.queue_result import QueueBenchResult, QueueBenchSettings
from forebay.orchestrator_client.timeline import check_timeline
from forebay.wire import WaitTimeoutError

from .app import EXIT_INTERRUPTED

EXIT_FAILED = 1
_RUN_S = 3600.0
R = TypeVar("R")

_WARM_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
"""Has glibc keep what is freed; the result says so.

On a CPU the "device's" memory comes from there, and pages that were never touched cost several times the copy. A
real device's allocator keeps its memory as well.
"""

bench = typer.Typer(help="Measure. Progress goes to standard error.", no_args_is_help=True, rich_markup_mode=None)

PayloadMib = Annotated[float, typer.Option(help="MiB of a micro-batch")]
Timeline = Annotated[Path | None, typer.Option(help="PNG to draw a timeline into")]
Json = Annotated[bool, typer.Option("--json", help="end with one JSON object on standard output")]


@bench.command("queue")
def queue(
    payload_mib: PayloadMib = 256.0,
    micro_batches: Annotated[int, typer.Option(help="micro-batches of one run")] = 9,
    pairs: Annotated[int, typer.Option(help="runs in each of the two modes, in turn")] = 7,
    pop_transfer_mib: Annotated[float, typer.Option(help="MiB of the transfer beside which is popped")] = 256.0,
    cap: Annotated[int, typer.Option(help="micro-batches on the device beside the running one")] = 1,
    timeline: Timeline = None,
    json: Json = False,
) -> None:
    """The trainer's staging queue: what it hides, and how much the device holds."""
    settings = QueueBenchSettings(
        payload_mib=payload_mib,
        micro_batches=micro_batches,
        pairs=pairs,
        pop_transfer_mib=pop_transfer_mib,
        cap=cap,
    )
    if timeline is not None:
        check_timeline(timeline)
    result = _run_queue_bench(settings, timeline)
    _tell(result, json, _print_queue_table)


@bench.command("overlap")
def overlap(
    payload_mib: PayloadMib = 48.0,
    compute_s: Annotated[float, typer.Option(help="seconds of compute of a micro-batch; the rest scales")] = 0.5,
    steps: Annotated[int, typer.Option(help="steps of a run, of nine micro-batches each")] = 6,
    wire: Annotated[list[str] | None, typer.Option(help="steady, compressed or trace; default all three")] = None,
    timeline: Timeline = None,
    json: Json = False,
) -> None:
    """The stage-ahead loop: inline, within the step and across its boundary, beside what a model allows."""
    given: dict[str, Any] = {"wires": tuple(wire)} if wire else {}
    settings = OverlapBenchSettings(payload_mib=payload_mib, compute_s=compute_s, steps=steps, **given)
    if timeline is not None:
        check_timeline(timeline)
    try:
        result = run_overlap(settings, timeline, _WARM_MEMORY)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _tell(result, json, _print_overlap_table)


def _tell(result: R, as_json: bool, print_table: Callable[[R, Console], None]) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        print_table(result, Console(highlight=False))


def _run_queue_bench(settings: QueueBenchSettings, timeline: Path | None) -> QueueBenchResult:
    # A process of its own: this one never imports jax.
    command = [sys.executable, "-m", "forebay.benchmarks.queue_bench", msgspec.json.encode(settings).decode()]
    if timeline is not None:
        command.append(str(timeline))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | _WARM_MEMORY,
            timeout=_RUN_S,
            check=False,
        )
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except subprocess.TimeoutExpired:
        raise WaitTimeoutError(f"the benchmark did not end within {_RUN_S:g} s", remedy="ask for less") from None
    if done.returncode != 0:
        raise typer.Exit(EXIT_FAILED)
    return msgspec.json.decode(done.stdout, type=QueueBenchResult)


def _print_queue_table(result: QueueBenchResult, console: Console) -> None:
    low, high = result.overlap_efficiency_spread
    rows = (
        ("pop_on_device_us_p50", f"{result.pop_on_device_us_p50:.1f}", f"beside a transfer; {result.pops} pops"),
        ("stage_batch_us_p50", f"{result.stage_batch_us_p50:.1f}", "while the device is full"),
        ("overlap_efficiency", f"{result.overlap_efficiency:.3f}", f"{low:.3f} to {high:.3f}; 1 hides all copies"),
        ("the same, serialized", f"{result.serialize_overlap_efficiency:.3f}", "nothing overlaps"),
        ("serialize_over_stage", f"{result.serialize_over_stage:.3f}", "times as long"),
        ("max_live_device_sets", str(result.max_live_device_sets), f"cap {result.cap}, and the running one"),
    )
    table = Table(box=None, show_header=False)
    for name, value, meaning in rows:
        table.add_row(name, value, meaning)
    console.print(table)
    console.print(
        f"{result.pairs} pairs of {result.micro_batches} micro-batches of {result.payload_mib:g} MiB on"
        f" {result.device};\ncopy {result.copy_ms:.1f} ms, compute {result.compute_ms:.1f} ms: {result.compute}"
    )
    if result.timeline is not None:
        console.print(f"timeline in {result.timeline}", markup=False, soft_wrap=True)


def _print_overlap_table(result: OverlapBenchResult, console: Console) -> None:
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
    if result.timeline is not None:
        console.print(f"timeline in {result.timeline}", markup=False, soft_wrap=True)
