"""`forebay bench soak`: nothing is lost and nothing is trained twice, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from forebay.benchmarks.soak_result import SoakResult, SoakSettings
from forebay.wire import ExitCode

from ..needs import need_jax
from .shared import Json, interruptible, print_figures, tell


def soak(
    minutes: Annotated[float, typer.Option(help="minutes for which faults are injected")] = 3.0,
    faults: Annotated[
        str,
        typer.Option(help="all, none, or some of kill,term,stop,cut,garbage,cancel,full,reset,advance,stranger"),
    ] = "all",
    seed: Annotated[int, typer.Option(help="of the plan of faults and of the micro-batches")] = 0,
    slots: Annotated[int, typer.Option(help="slots of the daemon's pool")] = 4,
    in_flight: Annotated[int, typer.Option(help="micro-batches under way at once, each orchestrator")] = 3,
    watchdog_s: Annotated[float, typer.Option(help="seconds without progress after which it gives up")] = 60.0,
    shm: Annotated[
        Path, typer.Option(help="tmpfs for the pool; filled up only if it is a mount of its own")
    ] = Path("/dev/shm"),
    keep: Annotated[Path | None, typer.Option(help="folder in which books and logs stay")] = None,
    keys: Annotated[bool, typer.Option(help="let nobody in without a key")] = True,
    json: Json = False,
) -> None:
    """Faults at random, and what is lost by them.

    Nothing may be lost, trained twice, wrong, stuck, left behind or unexplained.
    """
    from forebay.benchmarks.soak_bench import run

    need_jax("bench soak")
    settings = SoakSettings(
        minutes=minutes,
        faults=faults,
        seed=seed,
        slots=slots,
        in_flight=in_flight,
        watchdog_s=watchdog_s,
        shm=str(shm),
        keep=None if keep is None else str(keep),
        keys=keys,
    )
    with interruptible(), _ended_by_signals():
        result = run(settings)
    tell(result, json, _print_table)
    if not result.is_clean:
        raise typer.Exit(ExitCode.FAILED)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Has SIGTERM end the soak as Ctrl-C does; once it ends by either, nothing keeps it from ending its processes.

    Some of them may be stopped, and would stay behind for ever.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _print_table(result: SoakResult, console: Console) -> None:
    rows = [
        ("micro_batches", str(result.micro_batches), "trained to their end"),
        ("kills", str(result.kills), f"and {result.terms} ends by SIGTERM"),
        ("stalls", str(result.stalls), "processes stopped beyond leases"),
        ("cuts", str(result.cuts), "of the network, by a proxy"),
        ("resets", str(result.resets), "of the queue"),
        ("stale", str(result.stale), "too old, or too many versions behind"),
        ("strangers", str(result.strangers), "visits without the keys or the rights"),
        ("lost", str(result.lost), "staged, never trained, never reported"),
        ("duplicated", str(result.duplicated), "trained twice"),
        ("wrong_bytes", str(result.wrong_bytes), "digests that differ"),
        ("stuck_slots", str(result.stuck_slots), "not FREE at the end"),
        ("leaked_bytes", str(result.leaked_bytes), "left behind"),
        ("unexplained_errors", str(result.unexplained_errors), "which no fault explains"),
        ("retrained", str(result.retrained_after_death), "after the death of who had them in hand"),
        ("reported_lost", str(result.reported_lost), "lost or dropped by name"),
    ]
    print_figures(console, rows)
    console.print("until the next micro-batch was trained, s:")
    print_figures(
        console,
        [
            (f"  {name}", f"{each.p50_s:.1f}", f"median of {each.faults}; at most {each.max_s:.1f}")
            for name, each in result.recovery_s.items()
        ],
    )
    words = [*result.left_out, *result.unexplained, *result.left_behind]
    words += [f"{name} {line}" for name, lines in result.suspects.items() for line in lines]
    for line in (*words, f"seed {result.seed}, {settings_words(result)}"):
        console.print(line[:400], markup=False)


def settings_words(result: SoakResult) -> str:
    """Says what was injected."""
    return f"faults {', '.join(result.faults)}; {'; '.join(result.stand_ins)}"
