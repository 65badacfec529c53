"""`forebay bench`: benchmarks whose claims are ratios and counts within one run."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from forebay.benchmarks.queue_result import QueueBenchResult, QueueBenchSettings
from forebay.wire import SettingError, WaitTimeoutError

from .app import EXIT_INTERRUPTED

EXIT_FAILED = 1
_RUN_S = 3600.0

_WARM_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
"""Has glibc keep what is freed; the result says so.

On a CPU the "device's" memory comes from there, and pages that were never touched cost several times the copy. A
real device's allocator keeps its memory as well.
"""


class Benchmark(enum.StrEnum):
    """Which one."""

    QUEUE = "queue"


def bench(
    name: Annotated[Benchmark, typer.Argument(help="queue: the trainer's staging queue")],  # noqa: ARG001
    payload_mib: Annotated[float, typer.Option(help="MiB of a micro-batch")] = 256.0,
    micro_batches: Annotated[int, typer.Option(help="micro-batches of one run")] = 9,
    pairs: Annotated[int, typer.Option(help="runs in each of the two modes, in turn")] = 7,
    pop_transfer_mib: Annotated[float, typer.Option(help="MiB of the transfer beside which is popped")] = 256.0,
    cap: Annotated[int, typer.Option(help="micro-batches on the device beside the running one")] = 1,
    timeline: Annotated[Path | None, typer.Option(help="PNG to draw the last two runs into")] = None,
    json: Annotated[bool, typer.Option("--json", help="end with one JSON object on standard output")] = False,
) -> None:
    """Measure. Progress goes to standard error."""
    settings = QueueBenchSettings(
        payload_mib=payload_mib,
        micro_batches=micro_batches,
        pairs=pairs,
        pop_transfer_mib=pop_transfer_mib,
        cap=cap,
    )
    if timeline is not None and (timeline.suffix != ".png" or timeline.is_dir() or not timeline.parent.is_dir()):
        raise SettingError("option --timeline", got=timeline, limit="a .png file in a folder that exists")
    result = _run_queue_bench(settings, timeline)
    if json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        _print_table(result)


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


def _print_table(result: QueueBenchResult) -> None:
    console = Console(highlight=False)
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
