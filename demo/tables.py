"""What the demonstration's user reads at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from forebay.wire import MIB

from .result import CompareResult, DemoResult

_NOISY: Final = 1.5
"""Times that a mode's compute may be longer than another's for what lies beside it, and no other reason."""
_IDLE: Final = """\
Idle is the device's time from one micro-batch being ready to the next one's
dispatch, and from a step's beginning to its first dispatch; "after fill" leaves
out the run's very first of these waits, which has nothing to lie beside."""


def print_run(console: Console, result: DemoResult) -> None:
    """Prints one run: its steps, then what was checked."""
    console.print(_step_table(result))
    _print_how(console, result)
    processes = ", ".join(f"{name} {pid}" for name, pid in result.processes.items())
    _say(console, f"processes     {processes}")
    _say(
        console,
        f"daemon        {result.daemon_private_mib:.0f} MiB of private memory at most,"
        f" {result.daemon_private_mib_before:.0f} before any data",
    )
    idle, after_fill = result.idle_fraction, result.idle_fraction_after_fill
    _say(console, f"device        {result.device}, idle {100 * idle:.1f} %, after fill {100 * after_fill:.1f} %")
    print_fallbacks(console, result)
    _print_verdict(
        console,
        result.differences,
        is_identical=result.bit_identical,
        what=f"{result.compared_leaves} leaves, {result.micro_batches} losses, all gradients and parameters",
    )
    _print_left(console, result.leaked_shm)


def print_comparison(console: Console, result: CompareResult) -> None:
    """Prints runs in several modes: one row each, then what was checked."""
    console.print(_mode_table(result.modes))
    _print_how(console, result.modes[0])
    _print_wire(console, result.modes)
    _print_noise(console, result.modes)
    for mode in result.modes:
        print_fallbacks(console, mode)
    _print_verdict(
        console,
        (*result.differences, *(f"{mode.mode}: {line}" for mode in result.modes for line in mode.differences)),
        is_identical=result.bit_identical,
        what="losses and parameters in all modes, and without Forebay",
    )
    _print_left(console, result.leaked_shm)


def print_timeline(console: Console, file: str) -> None:
    """Says where the picture is."""
    _say(console, f"timeline      {file}")


def print_fallbacks(console: Console, result: DemoResult) -> None:
    """Prints why micro-batches went inline that were to be staged."""
    for key, reason in result.fallback_reasons:
        _say(console, f"fallback      {result.mode}: {key}: {reason}")


def _step_table(result: DemoResult) -> Table:
    table = _table("seconds of one micro-batch, mean; and of the step, all")
    means = {"pull": "pull_s", "stage": "stage_s", "wait": "wait_s", "compute": "compute_s"}
    for heading in ("step", "mean loss", *means, "copy", "the step", "device idle %"):
        table.add_column(heading, justify="right")
    for number, (losses, metrics) in enumerate(zip(result.losses, result.step_metrics, strict=True)):
        copies = metrics["queue/promotions"]
        table.add_row(
            str(number),
            f"{sum(losses) / len(losses):.4f}",
            *(f"{metrics[f'stage/{name}'] / len(losses):.3f}" for name in means.values()),
            f"{metrics['queue/transfer_s'] / copies:.3f}" if copies else "-",
            f"{metrics['stage/step_s']:.2f}",
            f"{100 * metrics['stage/idle_fraction']:.1f}",
        )
    return table


def _mode_table(modes: Sequence[DemoResult]) -> Table:
    table = _table("seconds of one step, mean of the steps")
    parts = ("pull", "stage", "wait", "compute")
    counts = {"staged": "staged", "inline": "inline", "fell\nback": "fallbacks"}
    table.add_column("mode", vertical="bottom")
    for heading in ("step", "device\nidle %", "after\nfill %", *parts, *counts, "same\nbits"):
        table.add_column(heading, justify="right")
    for result in modes:
        table.add_row(
            result.mode,
            f"{result.seconds_a_step:.2f}",
            f"{100 * result.idle_fraction:.1f}",
            f"{100 * result.idle_fraction_after_fill:.1f}",
            *(f"{result.mean(f'stage/{part}_s'):.2f}" for part in parts),
            *(str(getattr(result, count)) for count in counts.values()),
            "yes" if result.bit_identical else "NO",
        )
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)


def _print_how(console: Console, result: DemoResult) -> None:
    mib = result.payload_bytes / result.micro_batches / MIB
    wire = f"throttled to {result.wire_gbit_s:.3g} Gbit/s" if result.wire_gbit_s else "not throttled"
    _say(console, _IDLE)
    _say(console, f"A micro-batch has {mib:.1f} MiB; the wire is {wire}.")
    if result.device.endswith("(cpu)"):
        cores = len(os.sched_getaffinity(0))
        _say(
            console,
            f"The compute is real, on {cores} cores that all processes share: what lies beside\nit slows it.",
        )


def _print_wire(console: Console, modes: Sequence[DemoResult]) -> None:
    """Tells what the wire's rate, which is the same for all, was beside the compute that each mode really had."""
    told = [f"{result.mode} {result.wire_over_compute:.2f}" for result in modes if result.wire_gbit_s]
    if told:
        _say(console, f"Seconds on the wire over those of the compute: {', '.join(told)}.")


def _print_noise(console: Console, modes: Sequence[DemoResult]) -> None:
    compute_s = [result.mean("stage/compute_s") for result in modes]
    if max(compute_s) > _NOISY * min(compute_s):
        ratio = max(compute_s) / min(compute_s)
        _say(console, f"The same compute took {ratio:.1f} times as long in one mode as in another:")
        _say(console, "something else ran on this machine. Compare idle and wait, not the steps.")


def _print_verdict(console: Console, differences: Sequence[str], *, is_identical: bool, what: str) -> None:
    if is_identical:
        _say(console, f"bit-identical yes: {what}")
    else:
        _say(console, "\n  ".join(("bit-identical NO", *differences)))


def _say(console: Console, words: str) -> None:
    console.print(words, markup=False, soft_wrap=True)


def _print_left(console: Console, leaked: Sequence[str]) -> None:
    _say(console, f"left in shm   {', '.join(leaked) or 'nothing'}")
