"""`forebay bench queue`: the trainer's staging queue."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from forebay.benchmarks.queue_result import QueueBenchResult, QueueBenchSettings
from forebay.wire import ExitCode, WaitTimeoutError

from ..needs import need_jax
from .shared import (
    WARM_MEMORY,
    Json,
    PayloadMib,
    Timeline,
    interruptible,
    print_figures,
    print_timeline_file,
    tell,
)

_RUN_S = 3600.0


def queue(
    payload_mib: PayloadMib = 256.0,
    micro_batches: Annotated[int, typer.Option(help="micro-batches of one run")] = 9,
    pairs: Annotated[int, typer.Option(help="runs in each of the two modes, in turn")] = 7,
    pop_transfer_mib: Annotated[float, typer.Option(help="MiB of the transfer beside which is popped")] = 256.0,
    cap: Annotated[int, typer.Option(help="micro-batches on the device beside the running one")] = 1,
    timeline: Timeline = None,
    json: Json = False,
) -> None:
    """What the staging queue hides, and what the device holds."""
    from forebay.orchestrator_client.timeline import check_timeline

    need_jax("bench queue")
    settings = QueueBenchSettings(
        payload_mib=payload_mib,
        micro_batches=micro_batches,
        pairs=pairs,
        pop_transfer_mib=pop_transfer_mib,
        cap=cap,
    )
    if timeline is not None:
        check_timeline(timeline)
    tell(_run(settings, timeline), json, _print_table)


def _run(settings: QueueBenchSettings, timeline: Path | None) -> QueueBenchResult:
    # A process of its own: this one never imports jax.
    command = [sys.executable, "-m", "forebay.benchmarks.queue_bench", msgspec.json.encode(settings).decode()]
    if timeline is not None:
        command.append(str(timeline))
    try:
        with interruptible():
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=os.environ | WARM_MEMORY,
                timeout=_RUN_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise WaitTimeoutError(f"the benchmark did not end within {_RUN_S:g} s", remedy="ask for less") from None
    if done.returncode != 0:
        raise typer.Exit(ExitCode.FAILED)
    return msgspec.json.decode(done.stdout, type=QueueBenchResult)


def _print_table(result: QueueBenchResult, console: Console) -> None:
    low, high = result.overlap_efficiency_spread
    rows = (
        ("pop_on_device_us_p50", f"{result.pop_on_device_us_p50:.1f}", f"beside a transfer; {result.pops} pops"),
        ("stage_batch_us_p50", f"{result.stage_batch_us_p50:.1f}", "while the device is full"),
        ("overlap_efficiency", f"{result.overlap_efficiency:.3f}", f"{low:.3f} to {high:.3f}; 1 hides all copies"),
        ("the same, serialized", f"{result.serialize_overlap_efficiency:.3f}", "nothing overlaps"),
        ("serialize_over_stage", f"{result.serialize_over_stage:.3f}", "times as long"),
        ("max_live_device_sets", str(result.max_live_device_sets), f"cap {result.cap}, and the running one"),
    )
    print_figures(console, rows)
    console.print(
        f"{result.pairs} pairs of {result.micro_batches} micro-batches of {result.payload_mib:g} MiB on"
        f" {result.device};\ncopy {result.copy_ms:.1f} ms, compute {result.compute_ms:.1f} ms: {result.compute}"
    )
    print_timeline_file(console, result.timeline)
