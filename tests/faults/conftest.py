"""Scenes, and how long it took until a fault was over."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..end_to_end.conftest import start, start_daemon
from ..end_to_end.processes import StartDaemon, StartParty
from .near import NearTrainer
from .scene import Scene, StartNear

__all__ = ["start", "start_daemon"]

FIGURES = "FAULT_FIGURES"
"""Names the file, if any, to which the times to recover are added; `figures.py` reads it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.faults)


@pytest.fixture
def start_near() -> Iterator[StartNear]:
    """Starts trainers in this process; all are gone when the test is over."""
    trainers: list[NearTrainer] = []

    def start_one(endpoint: str, **options: Any) -> NearTrainer:
        trainers.append(NearTrainer(endpoint, **options))
        return trainers[-1]

    yield start_one
    for trainer in trainers:
        trainer.close()


NewScene = Callable[..., Scene]


@pytest.fixture
def new_scene(start: StartParty, start_daemon: StartDaemon, start_near: StartNear) -> NewScene:
    """Makes scenes; the arguments are the daemon's settings."""

    def make(**settings: Any) -> Scene:
        return Scene(start, start_daemon, start_near, **settings)

    return make


Recovering = Callable[[str], contextlib.AbstractContextManager[None]]


@pytest.fixture
def recovering() -> Recovering:
    """Notes how long a block took: from the end of a fault until all goes on."""

    @contextlib.contextmanager
    def block(what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        if FIGURES in os.environ:
            with Path(os.environ[FIGURES]).open("a") as file:
                file.write(json.dumps({"what": what, "seconds": time.monotonic() - began}) + "\n")

    return block
