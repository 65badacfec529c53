"""What the demonstration's user reads says no more than what was seen."""

import io

import pytest
from rich.console import Console

from forebay.demo.result import DemoResult, compared
from forebay.demo.settings import Mode
from forebay.demo.tables import print_comparison

PARTS = ("pull", "stage", "wait")


def result(mode: Mode, compute_s: float) -> DemoResult:
    return DemoResult(
        mode=mode,
        processes={},
        device="cpu:0 (cpu)",
        wire_gbit_s=0.5,
        steps=1,
        micro_batches=1,
        staged=0,
        inline=1,
        fallbacks=1,
        fallback_reasons=[("step-0000/0000", "refused (no_slot): [all] are taken")],
        payload_bytes=54_375_000,  # 0.87 s at half a gigabit a second
        losses=[[1.0]],
        bit_identical=True,
        differences=(),
        compared_leaves=1,
        parameters_digest=str(mode),
        seconds_a_step=2.0,
        idle_fraction=0.25,
        first_fill_s=0.1,
        idle_fraction_after_fill=0.2,
        step_metrics=[{f"stage/{part}_s": 0.0 for part in PARTS} | {"stage/compute_s": compute_s}],
        daemon_private_mib=1.0,
        daemon_private_mib_before=1.0,
        leaked_shm=[],
        seconds=1.0,
    )


def words_of(*results: DemoResult) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_comparison(console, compared(results))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_differences_and_fallbacks_are_told() -> None:
    words = words_of(result(Mode.OFF, 1.0), result(Mode.STAGE, 1.0))
    assert "bit-identical NO\n  parameters of off differ from those of stage\n" in words
    assert "fallback      stage: step-0000/0000: refused (no_slot): [all] are taken\n" in words
    assert max(len(line) for line in words.splitlines()) <= 80


@pytest.mark.parametrize(("compute_s", "is_told"), [(1.1, False), (3.0, True)])
def test_machine_that_did_something_else_meanwhile_is_told(compute_s: float, is_told: bool) -> None:
    words = words_of(result(Mode.OFF, 1.0), result(Mode.STAGE, compute_s))
    assert ("took 3.0 times as long in one mode" in words) is is_told


def test_what_the_wire_was_beside_each_modes_own_compute_is_told() -> None:
    words = words_of(result(Mode.OFF, 1.0), result(Mode.STAGE, 0.5))
    assert "Seconds on the wire over those of the compute: off 0.87, stage 1.74.\n" in words
