"""`forebay bench small`: how many small micro-batches a second."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from forebay.benchmarks.small_result import SmallBenchResult, SmallBenchSettings

from ..needs import need_jax
from .shared import Json, interruptible, print_figures, tell


def small(
    payload_kib: Annotated[float, typer.Option(help="KiB of a micro-batch")] = 16.0,
    micro_batches: Annotated[int, typer.Option(help="micro-batches of a round")] = 1000,
    rounds: Annotated[int, typer.Option(help="rounds, after one that does not count")] = 9,
    in_flight: Annotated[int, typer.Option(help="stage calls under way at once")] = 8,
    slots: Annotated[int, typer.Option(help="slots of the daemon's pool")] = 16,
    cap: Annotated[int, typer.Option(help="micro-batches ahead in the trainer; 0 = any number")] = 8,
    json: Json = False,
) -> None:
    """Small micro-batches a second, offer to consumed."""
    from forebay.benchmarks.small_bench import run

    need_jax("bench small")
    settings = SmallBenchSettings(
        payload_kib=payload_kib,
        micro_batches=micro_batches,
        rounds=rounds,
        in_flight=in_flight,
        slots=slots,
        cap=cap,
    )
    with interruptible():
        result = run(settings)
    tell(result, json, _print_table)


def _print_table(result: SmallBenchResult, console: Console) -> None:
    low, high = result.per_s_spread
    rows = [
        ("per_s", f"{result.per_s:.0f}", f"{low:.0f} to {high:.0f} over {len(result.rounds)} rounds"),
        ("per_s_cap_1", f"{result.per_s_cap_1:.0f}", "with a cap of one on the device"),
    ]
    for name, cpu_s in result.cpu_s_per_1000.items():
        low, high = result.cpu_s_per_1000_spread[name]
        rows.append(("cpu_s_per_1000", f"{cpu_s:.3f}", f"{name}; {low:.3f} to {high:.3f}"))
    print_figures(console, rows)
    settings = result.settings
    console.print(
        f"rounds of {settings.micro_batches} micro-batches of {result.payload_bytes} bytes,"
        f" {settings.in_flight} in flight\n"
        f"measured: {result.measured}\ncopy to the device: {result.copy}"
    )
