"""`forebay bench codecs`: the bytes that codecs save, and what that wins on a slow wire."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from forebay.benchmarks.codecs_result import CodecsBenchResult, CodecsBenchSettings

from .shared import Json, PayloadMib, interruptible, tell


def codecs(
    payload_mib: PayloadMib = 256.0,
    rounds: Annotated[int, typer.Option(help="rounds, after one that does not count")] = 7,
    wire_gb_s: Annotated[float, typer.Option(help="GB a second that the sender keeps to")] = 0.5,
    codec: Annotated[str, typer.Option(help="auto, or one for all arrays")] = "auto",
    json: Json = False,
) -> None:
    """Bytes that codecs save, and arrays a second on a slow wire."""
    from forebay.benchmarks.codecs_bench import run

    settings = CodecsBenchSettings(payload_mib=payload_mib, rounds=rounds, wire_gb_s=wire_gb_s, codec=codec)
    with interruptible():
        result = run(settings)
    tell(result, json, _print_table)


def _print_table(result: CodecsBenchResult, console: Console) -> None:
    table = Table(box=None)
    for name in ("rows", "codec"):
        table.add_column(name, no_wrap=True)
    for name in ("wire\nbytes", "GB/s", "least", "most", "sender\nCPU s/GB", "daemon\nCPU s/GB"):
        table.add_column(name, justify="right")
    for name, kind in result.kinds.items():
        table.add_row(
            name,
            kind.codec,
            f"{kind.ratio:.3f}",
            f"{kind.gbps:.2f}",
            *(f"{value:.2f}" for value in kind.gbps_spread),
            f"{kind.sender_cpu_s_per_gb:.2f}",
            f"{kind.daemon_cpu_s_per_gb:.2f}",
        )
    console.print(table)
    settings = result.settings
    console.print(
        "wire bytes: of the expert ids, over those of the array; GB/s: of arrays, not of wire bytes\n"
        f"without the throttle: {result.unthrottled:.3f} of the bytes\n"
        f"{settings.rounds} rounds of micro-batches of {settings.payload_mib:g} MiB, codec {settings.codec}\n"
        f"wire: {result.wire}"
    )
    for codec, thread in result.thread.items():
        console.print(
            f"one thread, {codec}: encodes {thread.encode_gbps:.1f} GB/s, decodes {thread.decode_gbps:.1f} GB/s"
        )
