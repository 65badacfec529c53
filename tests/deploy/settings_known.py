"""The variables that each kind of process reads."""

from __future__ import annotations

import dataclasses
from typing import Any

from forebay.daemon import Settings
from forebay.orchestrator_client import OrchestratorSettings
from forebay.trainer import TrainerSettings
from forebay.wire import variable_of


def _variables(settings: type[Any]) -> set[str]:
    return {variable_of(field) for field in dataclasses.fields(settings)}


DAEMON = _variables(Settings)
TRAINER = _variables(TrainerSettings) | {"FOREBAY_TRAINER_ENDPOINT"}
ORCHESTRATOR = _variables(OrchestratorSettings) | {"FOREBAY_CONTROL_ENDPOINT", "FOREBAY_WORKER_ENDPOINT"}
BY_CONTAINER = {"forebay": DAEMON, "trainer": TRAINER, "orchestrator": ORCHESTRATOR, "keys": set[str]()}
