"""A trainer of the ledger's soak: the real conversation over holdings in plain memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forebay.benchmarks.soak_words import Did, TrainerLine
from forebay.daemon.actions import Address, Channel
from forebay.shm import Envelope
from forebay.trainer.conversation import Conversation, Phase
from forebay.wire import (
    Detach,
    Done,
    Finished,
    KeyGone,
    Lend,
    Limits,
    Message,
    Peer,
    Promoted,
    Stale,
    TrainerRequest,
)

if TYPE_CHECKING:
    from .ledger_soak import LedgerSoak


@dataclasses.dataclass
class Held:
    """A micro-batch with a trainer."""

    lend: Lend
    attempt: str
    is_on_device: bool = False
    has_begun: bool = False


class SoakTrainer:
    """One life of a trainer: the real conversation over holdings in plain memory."""

    def __init__(self, soak: LedgerSoak, life: int) -> None:
        self.soak = soak
        self.life = life
        self.asleep_until = 0.0
        self.address = Address(Channel.TRAINER, f"trainer.{life}".encode())
        self.holder = ""
        self.holders = 0
        self.credit_used = 0
        self.newest: dict[int, int] = {}
        self.entries: list[Held] = []
        peer = Peer(name="trainer", pid=life, host="here")
        self.conversation = Conversation(peer, "train", self, self.lock_in, retry_s=2.0)
        self.say(self.conversation.look(soak.driver.now))

    def lock_in(self, _pool: Path, _epoch: str) -> tuple[str, bool]:
        if self.holder:
            return self.holder, True
        self.holder = f"holder{self.life}"
        return self.holder, False

    # Holdings, as the feed has them.

    def attached(self, pool: Path, limits: Limits, *, same_pool: bool) -> None:  # noqa: ARG002
        if not same_pool:
            self.newest.clear()
            self.entries = [held for held in self.entries if held.is_on_device]
        self.credit_used = 0

    def held(self) -> tuple[tuple[int, int], ...]:
        return tuple((held.lend.slot, held.lend.generation) for held in self.entries if not held.is_on_device)

    def on_device(self) -> tuple[tuple[str, str], ...]:
        return tuple((held.lend.key, held.attempt) for held in self.entries if held.is_on_device)

    def demand(self) -> tuple[int, tuple[str, ...], bool]:
        room = max(0, 2 - len(self.entries))
        return self.credit_used + room, (), room > 0

    def lent(self, lend: Lend) -> None:
        self.credit_used += lend.on_credit
        if self.newest.get(lend.slot) == lend.generation:
            return
        self.newest[lend.slot] = lend.generation
        header = self.soak.driver.headers[lend.slot]
        envelope = msgspec.msgpack.decode(header.envelope, type=Envelope)
        assert (envelope.key, header.generation) == (lend.key, lend.generation), (
            "the slot holds another micro-batch"
        )
        self.entries.append(Held(lend, envelope.attempt))
        self.say(self.conversation.want())

    def stale(self, notice: Stale) -> None:
        raise AssertionError(notice)

    def gone(self, notice: KeyGone) -> None:
        raise AssertionError(notice)

    # What it does.

    def say(self, requests: Sequence[TrainerRequest]) -> None:
        for request in requests:
            self.soak.to_daemon(self.address, request)

    def hear(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Done):
                self.note(message)
            self.say(self.conversation.heard(message, self.soak.driver.now))  # type: ignore[arg-type]

    def note(self, done: Done) -> None:
        for report in self.conversation.unconfirmed:
            if isinstance(report, Finished) and report.id == done.id and not report.reason:
                self.write(report.key, Did.HEARD)

    def act(self) -> None:
        """Promotes, begins or finishes a micro-batch, or says again what is due."""
        self.soak.chance.choice((self.promote, self.begin, self.finish, self.tick))()

    def tick(self) -> None:
        self.say(self.conversation.tick(self.soak.driver.now))

    def promote(self) -> None:
        held = next((held for held in self.entries if not held.is_on_device), None)
        if held is not None:
            held.is_on_device = True
            lend = held.lend
            report = Promoted(holder="", key=lend.key, slot=lend.slot, generation=lend.generation)
            self.say(self.conversation.report(report))

    def begin(self) -> None:
        held = self.entries[0] if self.entries else None
        if held is not None and held.is_on_device and not held.has_begun:
            held.has_begun = True
            self.write(held.lend.key, Did.BEGIN)

    def finish(self) -> None:
        if self.entries and self.entries[0].has_begun:
            held = self.entries.pop(0)
            self.write(held.lend.key, Did.END)
            report = Finished(holder="", key=held.lend.key, attempt=held.attempt, generation=held.lend.generation)
            self.say(self.conversation.report(report))
            self.say(self.conversation.want())

    def leave(self) -> bool:
        """Leaves in order, if all is said and nothing is in hand; returns whether it has."""
        is_settled = self.conversation.phase is Phase.ATTACHED and self.conversation.is_settled
        if not is_settled or any(held.has_begun for held in self.entries):
            return False
        self.say(self.conversation.report(Detach(holder="")))
        self.write("", Did.LEFT)
        return True

    def write(self, key: str, what: Did) -> None:
        line = TrainerLine(at=self.soak.moment(), life=self.life, what=what, key=key, digest=key)
        self.soak.did.append(line)
