"""`forebay demo`: the whole way of a micro-batch, with real processes, real text and real training."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Annotated, Self

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay.demo.events import (
    AnyEvent,
    Compiled,
    ReplayedBatch,
    StagedBatch,
    TrainedBatch,
    TrainerDevice,
)
from forebay.demo.result import DemoResult, StepSummary
from forebay.demo.run import run_demo
from forebay.demo.settings import DemoSettings
from forebay.wire import MIB

from .app import EXIT_INTERRUPTED

EXIT_FAILED = 1


def demo(
    steps: Annotated[int, typer.Option(help="optimizer updates", min=1)] = 3,
    micro_batches: Annotated[int, typer.Option(help="micro-batches a step", min=1)] = 9,
    payload_mib: Annotated[float, typer.Option(help="least MiB a micro-batch, up to 1024")] = 16.0,
    slots: Annotated[int, typer.Option(help="slots of the daemon's pool", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="seed of all that is drawn", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="end with one JSON object on standard output")] = False,
) -> None:
    """Stage and train real micro-batches with three processes, then check them bit for bit."""
    console = Console(stderr=json, highlight=False)
    try:
        settings = DemoSettings(steps=steps, micro_batches=micro_batches, payload_mib=payload_mib, seed=seed)
        with _Display(console, settings) as display:
            result, summaries = run_demo(settings, slots=slots, on_event=display.show)
    except KeyboardInterrupt:
        sys.stderr.write("forebay demo: interrupted; all its processes have ended\n")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print_table(console, summaries)
    _print_checks(console, result)
    if json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    if not result.bit_identical or result.leaked_shm:
        raise typer.Exit(EXIT_FAILED)


class _Display:
    """Progress bars for what is staged, trained and replayed.

    Args:
        console: Where they go.
        settings: The demonstration's.
    """

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        add = self._progress.add_task
        self._bars: dict[type[AnyEvent], TaskID] = {
            StagedBatch: add("staged in the daemon", total=settings.total),
            TrainedBatch: add("trained", total=settings.total),
            ReplayedBatch: add("again, without Forebay", total=settings.total),
        }

    def show(self, event: AnyEvent) -> None:
        """Shows one event."""
        if type(event) in self._bars:
            self._progress.advance(self._bars[type(event)])
        match event:
            case TrainerDevice():
                self._console.print(f"training on {event.name} ({event.kind}); the compute is real")
            case Compiled():
                self._console.print(f"compiled in {event.seconds:.1f} s")
            case TrainedBatch() if not self._console.is_terminal:
                # Bars that move need a terminal; a log gets lines.
                self._console.print(f"{event.key} trained, loss {event.loss:.4f}")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _print_table(console: Console, summaries: list[StepSummary]) -> None:
    table = Table(
        title="means of one micro-batch; stage includes the wait for a slot", title_justify="left", box=None
    )
    headings = ("step", "first loss", "mean loss", "MiB", "stage s", "promote s", "compute s", "idle %")
    for heading in headings:
        table.add_column(heading, justify="right")
    for number, step in enumerate(summaries):
        table.add_row(
            str(number),
            f"{step.losses[0]:.4f}",
            f"{sum(step.losses) / len(step.losses):.4f}",
            f"{step.payload_bytes / MIB:.1f}",
            f"{step.stage_s:.3f}",
            f"{step.promote_s:.3f}",
            f"{step.compute_s:.3f}",
            f"{100 * step.idle_fraction:.1f}",
        )
    console.print(table)


def _print_checks(console: Console, result: DemoResult) -> None:
    processes = ", ".join(f"{name} {pid}" for name, pid in result.processes.items())
    console.print(f"processes     {processes}")
    console.print(
        f"daemon        {result.daemon_private_mib:.0f} MiB of private memory at most,"
        f" {result.daemon_private_mib_before:.0f} before any data"
    )
    console.print(f"device        {result.device}, idle {100 * result.idle_fraction:.1f} % of the run")
    if result.bit_identical:
        console.print(
            f"bit-identical yes: {result.compared_leaves} leaves, {result.micro_batches} losses,"
            " all gradients and parameters"
        )
    else:
        console.print("bit-identical NO", *result.differences, sep="\n  ", markup=False, soft_wrap=True)
    console.print(f"left in shm   {', '.join(result.leaked_shm) or 'nothing'}", markup=False, soft_wrap=True)
