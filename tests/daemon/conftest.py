"""The peers of a ledger over plain memory; each module makes its own `driver`, with as many slots as it needs."""

from __future__ import annotations

import pytest

from .ledger_driver import Driver
from .ledger_peers import Sender, Trainer


@pytest.fixture
def sender(driver: Driver) -> Sender:
    return Sender(driver)


@pytest.fixture
def trainer(driver: Driver) -> Trainer:
    """A trainer that is attached."""
    trainer = Trainer(driver)
    trainer.attach()
    return trainer
