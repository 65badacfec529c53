"""What an orchestrator of the soak says about its queue: resets and policy versions, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from forebay.orchestrator_client import StagingClient
from forebay.wire import ForebayError, words_of

from .soak_words import QUEUE, Book, OrchestratorLine, Told, now

_ORDERS: Final = {"reset": Told.RESET, "advance": Told.ADVANCE}


class QueueOrders:
    """Carries out orders about the queue, in the order in which they come.

    Args:
        book: Where each is written down, before and after.
        life: Which of the orchestrator's processes this is.
        before: What the lives before wrote.

    Attributes:
        version: The policy version, as this orchestrator knows it.
    """

    def __init__(self, book: Book, life: int, before: Sequence[OrchestratorLine]) -> None:
        self._book = book
        self._life = life
        self._orders: asyncio.Queue[tuple[Told, int]] = asyncio.Queue()
        told = [line.policy_version for line in before if line.what in _ORDERS.values()]
        self.version = (told[-1] if told else 0) or 0

    def take(self, name: str, version: int) -> None:
        """Takes an order: `reset` or `advance`, which the daemon is told; or `version`, which it is not."""
        self.version = version
        if name in _ORDERS:
            self._orders.put_nowait((_ORDERS[name], version))

    async def carry_out(self, client: StagingClient) -> None:
        """Does what is ordered, until it is cancelled."""
        while True:
            what, version = await self._orders.get()
            self._write(what, policy_version=version)
            try:
                if what is Told.RESET:
                    await client.reset(queue=QUEUE)
                    self._write(Told.WAS_RESET, policy_version=version)
                else:
                    await client.advance(version, queue=QUEUE)
                    self._write(Told.ADVANCED, policy_version=version)
            except ForebayError as error:
                self._write(Told.ERROR, code=type(error).__name__, words=words_of(error))

    def _write(self, what: Told, *, policy_version: int | None = None, code: str = "", words: str = "") -> None:
        line = OrchestratorLine(
            at=now(),
            life=self._life,
            key="",
            what=what,
            code=code,
            words=words,
            policy_version=policy_version,
        )
        self._book.write(line)
