"""`forebay demo`: the whole way of a micro-batch, with real processes, real text and real training."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from forebay.demo.display import Display
from forebay.demo.picture import draw_runs
from forebay.demo.result import CompareResult, DemoResult, DemoRun, compared
from forebay.demo.run import measure_compute_s, run_demo
from forebay.demo.settings import WIRE_OVER_COMPUTE, DemoSettings, Mode
from forebay.demo.tables import print_comparison, print_run, print_timeline
from forebay.orchestrator_client.timeline import check_timeline
from forebay.wire import ExitCode, SettingError
from forebay.wire.plain_json import json_line

from .needs import need_jax

_STEPS: Final = 3
_COMPARED_STEPS: Final = 2
_COMPARED_TIMELINE: Final = Path("forebay-demo.png")


def demo(
    mode: Annotated[
        Mode | None, typer.Option(help="what the trainer does with what could be staged; default stage")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="run all modes, one after another")] = False,
    steps: Annotated[
        int | None,
        typer.Option(help=f"optimizer updates; default {_STEPS}, or {_COMPARED_STEPS} with --compare", min=1),
    ] = None,
    micro_batches: Annotated[int, typer.Option(help="micro-batches a step", min=1)] = 9,
    payload_mib: Annotated[float, typer.Option(help="least MiB a micro-batch, up to 1024")] = 16.0,
    wire_gbit_s: Annotated[
        float | None,
        typer.Option(
            help="Gbit/s that the orchestrator keeps to when it sends, 0 = as fast as it goes; default 0,"
            f" or with --compare what makes the wire take {WIRE_OVER_COMPUTE} of the compute"
        ),
    ] = None,
    slots: Annotated[int, typer.Option(help="slots of the daemon's pool", min=1, max=1024)] = 4,
    seed: Annotated[int, typer.Option(help="seed of all that is drawn", min=0)] = 0,
    timeline: Annotated[
        Path | None,
        typer.Option(help=f"PNG to draw what happened when; default {_COMPARED_TIMELINE} with --compare"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="end with one JSON object on standard output")] = False,
) -> None:
    """Stage and train real text with three processes.

    Then check that what was trained is what was sent, and that losses and gradients are those of training in
    one process, all of it bit for bit.
    """
    if compare and mode is not None:
        raise SettingError("option --mode", got=mode.value, limit="none with --compare, which runs all modes")
    settings = DemoSettings(
        steps=steps or (_COMPARED_STEPS if compare else _STEPS),
        micro_batches=micro_batches,
        payload_mib=payload_mib,
        seed=seed,
        mode=mode or Mode.STAGE,
        wire_gbit_s=wire_gbit_s or 0,
    )
    need_jax("demo")
    console = Console(stderr=json, highlight=False)
    with _interruptible():
        file = _timeline(console, timeline, compare=compare)
        if compare and wire_gbit_s is None:
            settings = _with_fitting_wire(console, settings)
        runs = _run(console, settings, tuple(Mode) if compare else (settings.mode,), slots)
        result: CompareResult | DemoResult = compared([run.result for run in runs]) if compare else runs[0].result
        if file is not None:
            draw_runs(runs, file)
            result = msgspec.structs.replace(result, timeline=str(file))
    _print(console, result, json=json)
    if not result.bit_identical or result.leaked_shm:
        raise typer.Exit(ExitCode.FAILED)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("forebay demo: interrupted; all its processes have ended\n")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _timeline(console: Console, asked: Path | None, *, compare: bool) -> Path | None:
    """Returns where to draw, if that can be done; it must be if it was asked for."""
    if asked is None and not compare:
        return None
    file = _COMPARED_TIMELINE if asked is None else asked
    try:
        check_timeline(file)
    except SettingError as error:
        if asked is not None:
            raise
        console.print(f"no timeline is drawn: {error}", markup=False, soft_wrap=True)
        return None
    return file


def _with_fitting_wire(console: Console, settings: DemoSettings) -> DemoSettings:
    compute_s = measure_compute_s(settings)
    rate = settings.wire_gbit_s_for(compute_s)
    console.print(
        f"A micro-batch's compute takes {compute_s:.2g} s alone. The wire is throttled to\n"
        f"{rate:.3g} Gbit/s, to take {WIRE_OVER_COMPUTE} of that, as in runs with 5 GB a micro-batch."
    )
    return msgspec.structs.replace(settings, wire_gbit_s=rate)


def _run(console: Console, settings: DemoSettings, modes: Sequence[Mode], slots: int) -> list[DemoRun]:
    runs = []
    for mode in modes:
        own = msgspec.structs.replace(settings, mode=mode)
        with Display(console, own) as display:
            runs.append(run_demo(own, slots=slots, on_event=display.show))
    return runs


def _print(console: Console, result: Any, *, json: bool) -> None:
    if isinstance(result, CompareResult):
        print_comparison(console, result)
    else:
        print_run(console, result)
    if result.timeline is not None:
        print_timeline(console, result.timeline)
    if json:
        sys.stdout.write(json_line(result))
