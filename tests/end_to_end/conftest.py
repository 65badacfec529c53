"""Real daemons, orchestrators and trainers, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay import LocalDaemon, local_daemon

from .processes import Party, StartDaemon, StartParty, words_of


@pytest.fixture
def start() -> Iterator[StartParty]:
    """Starts orchestrators and trainers; all are gone when the test is over."""
    parties: list[Party] = []

    def start_one(role: str, endpoint: str, *, wrapper: Sequence[str] = (), **options: Any) -> Party:
        parties.append(Party(*words_of(role, endpoint, **options), wrapper=wrapper))
        return parties[-1]

    yield start_one
    for party in parties:
        party.close()


@pytest.fixture
def start_daemon(shm_dir: Path) -> Iterator[StartDaemon]:
    """Starts daemons that share one pool and one set of endpoints, so that one can follow another."""
    daemons: list[LocalDaemon] = []
    common = {f"{name}_endpoint": f"ipc://{shm_dir}/{name}.sock" for name in ("control", "data", "trainer")}

    def start_one(**settings: Any) -> LocalDaemon:
        defaults: dict[str, Any] = {"pool": str(shm_dir / "pool"), "slot_initial_bytes": 1 << 20, "drain_s": 1.0}
        daemons.append(local_daemon(**{**common, **defaults, **settings}))
        return daemons[-1]

    yield start_one
    for daemon in daemons:
        daemon.close()
