"""A conversation without a daemon: its queue, what is said to it, and what it says to that."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TypeVar

from forebay.trainer.conversation import Conversation, Phase
from forebay.wire import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Finished,
    KeyGone,
    Lend,
    Limits,
    Peer,
    PoolFound,
    Promoted,
    RefusalCode,
    Refused,
    Stale,
    TrainerRequest,
)

R = TypeVar("R", bound=TrainerRequest)
RETRY_S = 2.0
LIMITS = Limits()
PROMOTED = Promoted(holder="", slot=3, generation=7, key="a")
FINISHED = Finished(holder="", key="b")
FINISHED_IN_SLOT = Finished(holder="", key="c", slot=4, generation=9, reason="it did not fit")
ATTACHED = Attached(epoch="epoch", limits=LIMITS)


@dataclasses.dataclass
class FakeQueue:
    """The trainer's queue and its lock, as the conversation sees them."""

    held_slots: tuple[tuple[int, int], ...] = ()
    promoted: tuple[tuple[str, str], ...] = ()
    credit_total: int = 1
    wanted: tuple[str, ...] = ()
    is_unmet: bool = True
    lends: list[Lend] = dataclasses.field(default_factory=list)
    notices: list[KeyGone] = dataclasses.field(default_factory=list)
    stales: list[Stale] = dataclasses.field(default_factory=list)
    told: list[tuple[Path, bool]] = dataclasses.field(default_factory=list)
    locked: Path | None = None
    locks: int = 0

    def attached(self, pool: Path, limits: Limits, *, same_pool: bool) -> None:
        assert limits == LIMITS
        self.told.append((pool, same_pool))

    def held(self) -> tuple[tuple[int, int], ...]:
        return self.held_slots

    def on_device(self) -> tuple[tuple[str, str], ...]:
        return self.promoted

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        return self.credit_total, self.wanted, self.is_unmet

    def lent(self, lend: Lend) -> None:
        self.lends.append(lend)

    def stale(self, notice: Stale) -> None:
        self.stales.append(notice)

    def gone(self, notice: KeyGone) -> None:
        self.notices.append(notice)

    def lock_in(self, pool: Path, _epoch: str) -> tuple[str, bool]:
        is_same = self.locked == pool
        self.locked = pool
        self.locks += not is_same
        return f"holder{self.locks}", is_same


def conversation_of(queue: FakeQueue) -> Conversation:
    peer = Peer(name="trainer", pid=1, host="here")
    return Conversation(peer, "train", queue, queue.lock_in, retry_s=RETRY_S)


def only(requests: list[TrainerRequest], kind: type[R]) -> R:
    assert len(requests) == 1, requests
    assert isinstance(requests[0], kind), requests
    return requests[0]


def kinds(requests: list[TrainerRequest]) -> list[str]:
    return [type(request).__name__ for request in requests]


def pool_found(pool: str = "/pool", *, version: int = PROTOCOL_VERSION) -> PoolFound:
    return PoolFound(version=version, software="0", epoch="epoch", pool=pool)


def refused(code: RefusalCode, *, version: int = PROTOCOL_VERSION) -> Refused:
    return Refused(code=code, words="no", version=version)


def attach(conversation: Conversation, now: float = 0.0, pool: str = "/pool") -> Attach:
    """Says and hears all that leads to being attached; returns what was asked for."""
    if conversation.phase is not Phase.LOOKING or now == 0.0:
        conversation.look(now)
    request = only(conversation.heard(pool_found(pool), now), Attach)
    conversation.heard(ATTACHED, now)
    assert conversation.phase is Phase.ATTACHED
    return request
