"""Progress while the demonstration's processes run."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .events import AnyEvent, Compiled, PulledBatch, ReplayedBatch, TrainedBatch, TrainerDevice
from .settings import DemoSettings


class Display:
    """Progress bars for what is pulled, trained and replayed in one run; a context manager.

    Args:
        console: Where they go.
        settings: The run's.
    """

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        self._console = console
        self._mode = settings.mode
        self._progress = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        add = self._progress.add_task
        self._bars: dict[type[AnyEvent], TaskID] = {
            PulledBatch: add("pulled from the source", total=settings.total),
            TrainedBatch: add(f"trained, mode {settings.mode}", total=settings.total),
            ReplayedBatch: add("again, without Forebay", total=settings.total),
        }

    def show(self, event: AnyEvent) -> None:
        """Shows one event."""
        if type(event) in self._bars:
            self._progress.advance(self._bars[type(event)])
        match event:
            case TrainerDevice():
                self._console.print(f"mode {self._mode}: on {event.name} ({event.kind}); the compute is real")
            case Compiled():
                self._console.print(f"compiled in {event.seconds:.1f} s")
            case TrainedBatch() if not self._console.is_terminal:
                # Bars that move need a terminal; a log gets lines.
                self._console.print(f"{event.key} trained ({event.source}), loss {event.loss:.4f}")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
