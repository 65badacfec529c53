"""A ledger and its peers, for what is told of it; and a daemon that commands are tried on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay import LocalDaemon, local_daemon

from ..daemon.conftest import sender, trainer
from ..daemon.ledger_driver import Driver

__all__ = ["sender", "trainer"]


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3)


@pytest.fixture
def daemon() -> Iterator[LocalDaemon]:
    with local_daemon(slots=3, slot_initial_bytes=1 << 16) as started:
        yield started


# All of them.
