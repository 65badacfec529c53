"""A worker's methods of an engine that a test can look into, without a worker."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.trainer import StagedEngine
from forebay.trainer.step_clock import StepClock
from forebay.trainer.worker_methods import EngineMethods

from .engines import HandEngine, staged

MODES = pytest.mark.parametrize("mode", ["off", "stage", "serialize"])


class DeferringEngine(HandEngine):
    def apply_deferred_update(self, **options: Any) -> str:
        self.options.append(options)
        return "applied"


def methods_of(engine: Any, mode: str = "stage") -> tuple[EngineMethods, StagedEngine]:
    wrapped = staged(engine, mode)
    return EngineMethods(wrapped, {"calls": 3}), wrapped


def step(methods: EngineMethods, *arguments: Any, **options: Any) -> tuple[Any, StepClock]:
    clock = StepClock()
    return methods.fwd_bwd(*arguments, stage_clock=clock, **options), clock


def raise_boom(_: Any = None) -> None:
    raise RuntimeError("boom")
