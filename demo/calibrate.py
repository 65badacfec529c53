"""The process that measures a micro-batch's compute, so that a wire can be had that fits it.

Run as `python -m forebay.demo.calibrate SETTINGS`.
"""

from __future__ import annotations

from .batches import micro_batches
from .child import run_child
from .events import Calibrated, emit
from .loss import rows_of
from .model import init_params
from .settings import DemoSettings
from .training import compile_step, measure_compute


def main(settings: DemoSettings) -> None:
    """Measures, and reports."""
    _, example = next(micro_batches(settings))
    params, rows = init_params(settings.seed), rows_of(example)
    compile_step(params, rows)
    emit(Calibrated(compute_s=measure_compute(params, rows)))


if __name__ == "__main__":
    run_child(main)
