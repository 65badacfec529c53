"""Takes what peers say off their sockets, has the ledger decide, and has the executor do that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from forebay.shm import holder_fault
from forebay.sockets import Endpoint, too_many_frames
from forebay.wire import (
    Attach,
    ControlRequest,
    GetEvents,
    Inspection,
    ProtocolError,
    TrainerRequest,
    decode_control_request,
    decode_trainer_request,
)

from .actions import Action, Address, Channel
from .executor import Executor
from .ledger import Ledger
from .server_sockets import ServerSockets

T = TypeVar("T")

_LOOKS_S: Final = 0.02
"""Of one turn, for the questions of all inspectors: nobody who stages waits longer for them."""


class Hearing:
    """Hears the peers of one daemon; for its loop alone.

    Args:
        ledger: Decides.
        executor: Carries that out, answers at the end of each turn.
        sockets: Where peers speak.
        pool: The pool's folder, where trainers have their locks.
    """

    def __init__(self, ledger: Ledger, executor: Executor, sockets: ServerSockets, pool: Path) -> None:
        self._ledger = ledger
        self._executor = executor
        self._sockets = sockets
        self._pool = pool
        self._asked_what_happened: set[Address] = set()
        self._looks_s = 0.0

    def trainers(self) -> None:
        """Hears what has come from trainers, up to one turn's share."""
        self._receive(Channel.TRAINER, self._sockets.trainer, decode_trainer_request, self._hear_trainer)

    def others(self) -> None:
        """Hears what has come from orchestrators and inspectors, up to one turn's share."""
        self._asked_what_happened.clear()
        self._looks_s = 0.0
        self._receive(Channel.CONTROL, self._sockets.control, decode_control_request, self._hear_control)

    def _receive(
        self,
        channel: Channel,
        endpoint: Endpoint,
        decode: Callable[[bytes], T],
        handle: Callable[[Address, T, float], Sequence[Action]],
    ) -> None:
        perform = self._executor.perform
        for routing, user, frames, too_many in endpoint.received():
            sender = Address(channel, routing, user)
            if too_many:
                perform(self._ledger.unreadable(sender, too_many_frames(too_many)))
            for frame in frames:
                try:
                    request = decode(frame)
                except ProtocolError as error:
                    perform(self._ledger.unreadable(sender, str(error)))
                else:
                    now = time.monotonic()
                    perform(handle(sender, request, now))
                    if isinstance(request, Inspection):
                        self._looks_s += time.monotonic() - now
        self._executor.flush()

    def _hear_control(self, sender: Address, request: ControlRequest, now: float) -> Sequence[Action]:
        if self._can_wait(sender, request):
            return ()
        return self._ledger.control(sender, request, now, self._sockets.client_of(sender))

    def _can_wait(self, sender: Address, request: ControlRequest) -> bool:
        """Whether a question is left unanswered, as much is asked at once: who still cares asks again."""
        if not isinstance(request, Inspection):
            return False
        if self._looks_s >= _LOOKS_S:
            return True
        if isinstance(request, GetEvents):
            # Also one with a short answer may take a look at all that is kept.
            if sender in self._asked_what_happened:
                return True
            self._asked_what_happened.add(sender)
        # The longest answers to the shortest requests.
        return self._executor.has_much_for(sender)

    def _hear_trainer(self, sender: Address, request: TrainerRequest, now: float) -> Sequence[Action]:
        fault = holder_fault(self._pool, request.holder) if isinstance(request, Attach) else ""
        return self._ledger.trainer(sender, request, now, holder_fault=fault)
