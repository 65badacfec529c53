"""`forebay bench ingest`: Forebay beside other ways into warm shared memory."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from forebay.benchmarks.ingest_result import GROUPS, WAYS, IngestBenchResult, IngestBenchSettings

from .shared import Json, PayloadMib, interruptible, print_figures, tell

_RATIOS = {
    "over_raw_tcp": "forebay_tcp beside raw_tcp; 1 is as fast",
    "over_raw_tcp_pieces": "beside the fastest form of raw TCP",
    "over_raw_unix": "forebay_ipc beside raw_unix",
    "over_grpc_unary": "forebay_tcp beside grpc_unary; 2 is twice as fast",
    "over_grpc_stream": "forebay_tcp beside grpc_stream",
    "over_flight": "forebay_tcp beside flight",
    "over_transfer_queue": "forebay_tcp beside transfer_queue",
    "encrypted_over_plain": "encrypted data; 1 costs nothing",
    "authenticated_over_plain": "control encrypted alone",
    "leaves_64_over_1": "throughput with many leaves over that with one",
    "linear": "seconds a GB of a large micro-batch over a small one's",
    "first_over_steady": "seconds of a daemon's first over later ones",
}


def ingest(
    payload_mib: PayloadMib = 1024.0,
    leaves: Annotated[int, typer.Option(help="leaves that it consists of")] = 1,
    pairs: Annotated[int, typer.Option(help="rounds, in each of which every way takes its turn")] = 7,
    codec: Annotated[str, typer.Option(help="how Forebay's client lets arrays travel")] = "raw",
    connections: Annotated[int, typer.Option(help="of Forebay's client, for bulk data")] = 1,
    group: Annotated[list[str] | None, typer.Option(help=f"{', '.join(GROUPS)}; default all")] = None,
    way: Annotated[list[str] | None, typer.Option(help=f"{', '.join(WAYS)}; default all")] = None,
    json: Json = False,
) -> None:
    """Ways from a sender's memory into warm shared memory."""
    from forebay.benchmarks.ingest_bench import run

    given: dict[str, Any] = {"groups": tuple(group)} if group else {}
    given |= {"ways": tuple(way)} if way else {}
    settings = IngestBenchSettings(
        payload_mib=payload_mib, leaves=leaves, pairs=pairs, codec=codec, connections=connections, **given
    )
    with interruptible():
        result = run(settings)
    tell(result, json, _print_tables)


def _print_tables(result: IngestBenchResult, console: Console) -> None:
    if result.ways:
        _print_ways(result, console)
    for name, reason in result.skipped.items():
        console.print(f"{name} was left out: {reason}", markup=False)
    print_figures(console, _figures(result))
    settings = result.settings
    console.print(
        f"{settings.pairs} rounds of {settings.payload_mib:g} MiB in {settings.leaves} leaves, codec"
        f" {settings.codec}, {settings.connections} connections\n"
        "CPU: seconds of the sender's and the receiver's process a GB; MiB: their private memory\n"
        f"wire: {result.wire}\nmemory: {result.memory}",
        markup=False,
    )


def _print_ways(result: IngestBenchResult, console: Console) -> None:
    table = Table(box=None)
    table.add_column("way", no_wrap=True)
    for name in ("GB/s", "least", "most", "sender\nCPU", "receiver\nCPU", "sender\nMiB", "receiver\nMiB"):
        table.add_column(name, justify="right")
    for name, way in result.ways.items():
        table.add_row(
            name,
            *(f"{rate:.2f}" for rate in (way.gb_s, *way.gb_s_spread)),
            *(f"{cpu_s:.2f}" for cpu_s in (way.sender_cpu_s_per_gb, way.receiver_cpu_s_per_gb)),
            *(f"{mib:.0f}" for mib in (way.sender_private_mib, way.receiver_private_mib)),
        )
    console.print(table)


def _figures(result: IngestBenchResult) -> list[tuple[str, str, str]]:
    rows = []
    for name, meaning in _RATIOS.items():
        ratio, spread = getattr(result, name), getattr(result, f"{name}_spread")
        if ratio is not None:
            rows.append((name, f"{ratio:.2f}", f"{spread[0]:.2f} to {spread[1]:.2f}; {meaning}"))
    for payload_mib, private_mib in result.daemon_private_mib.items():
        rows.append(("daemon_private_mib", f"{private_mib:.1f}", f"peak, with {payload_mib} MiB a micro-batch"))
    return rows
