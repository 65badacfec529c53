"""A driver whose ledger takes bodies with offers, and an orchestrator that sends them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from forebay.daemon.actions import Action, Log
from forebay.wire import Message, Offer, chunk_checksum

from .ledger_driver import LIMITS, Driver
from .ledger_peers import Sender, manifest_of

MAX_EAGER_BYTES = 1024


class EagerDriver(Driver):
    """A driver that allows bodies of a KiB, and notes what the ledger has said.

    Attributes:
        said: All actions but log lines, in order, until a test clears it.
    """

    def __init__(self, slots: int = 2, **more: Any) -> None:
        self.said: list[Action] = []
        super().__init__(slots, **more)
        limits = msgspec.structs.replace(LIMITS, max_eager_bytes=MAX_EAGER_BYTES)
        self.settings = dataclasses.replace(self.settings, limits=limits)
        self._new_ledger()

    def perform(self, actions: Sequence[Action]) -> None:
        self.said += [action for action in actions if not isinstance(action, Log)]
        super().perform(actions)

    def forget(self) -> None:
        """Forgets what was said and written, so that nothing here holds on to any bytes."""
        self.said.clear()
        self.bodies.clear()


def body_of(key: str, nbytes: int = 600) -> bytes:
    """Makes a body that is nobody else's."""
    return (f"the body of {key} " * nbytes).encode()[:nbytes]


def offer_eagerly(
    driver: Driver,
    sender: Sender,
    key: str,
    attempt: str = "",
    *,
    body: bytes | None = None,
    nbytes: int = 600,
    wait_s: float = 30.0,
    **more: Any,
) -> list[Message]:
    """Offers a micro-batch together with its body, by default a right one."""
    body = body_of(key, nbytes) if body is None else body
    fields: dict[str, Any] = {"queue": "train", "checksum": chunk_checksum(body, 0), **more}
    return sender.say(
        Offer(
            id=driver.new_id(),
            key=key,
            attempt=attempt or f"train/{key}/1",
            manifest=manifest_of(nbytes),
            wait_s=wait_s,
            body=body,
            **fields,
        )
    )
