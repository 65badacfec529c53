"""A ledger and its peers, for what is told of it."""

from __future__ import annotations

import pytest

from ..daemon.ledger_driver import Driver
from ..daemon.ledger_peers import Sender, Trainer


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3)


@pytest.fixture
def sender(driver: Driver) -> Sender:
    return Sender(driver)


@pytest.fixture
def trainer(driver: Driver) -> Trainer:
    trainer = Trainer(driver)
    trainer.attach()
    return trainer
