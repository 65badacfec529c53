"""Lines as the soak's processes write them, in the order in which they are made."""

from __future__ import annotations

import itertools
from typing import Any

from forebay.benchmarks.soak_words import Did, OrchestratorLine, Told, TrainerLine


class Books:
    """The books of one orchestrator and of the trainer; each line comes a second after the one before."""

    def __init__(self) -> None:
        self.told: list[OrchestratorLine] = []
        self.did: list[TrainerLine] = []
        self._seconds = itertools.count(1)

    def told_of(self, key: str, *whats: Told, digest: str = "right", **fields: Any) -> None:
        for what in whats:
            at = float(next(self._seconds))
            self.told.append(OrchestratorLine(at=at, life=1, key=key, what=what, digest=digest, **fields))

    def did_with(self, key: str, *whats: Did, life: int = 1, digest: str = "right") -> None:
        for what in whats:
            at = float(next(self._seconds))
            self.did.append(TrainerLine(at=at, life=life, key=key, what=what, digest=digest))

    def staged(self, key: str) -> None:
        self.told_of(key, Told.ATTEMPT, Told.STAGED)

    def trained(self, key: str, life: int = 1) -> None:
        self.did_with(key, Did.BEGIN, Did.END, life=life)
