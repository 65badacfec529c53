"""An orchestrator of the ledger's soak."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.benchmarks.soak_words import OrchestratorLine, Told
from forebay.daemon.actions import Address, Channel
from forebay.wire import (
    PROTOCOL_VERSION,
    Abandon,
    Await,
    ControlRequest,
    Gone,
    Granted,
    Hello,
    Message,
    MicroBatchState,
    Offer,
    Peer,
    Reached,
    RefusalCode,
    Refused,
    Staged,
)

from .ledger_driver import SLOT_BYTES
from .ledger_peers import chunk_headers, manifest_of

if TYPE_CHECKING:
    from .ledger_soak import LedgerSoak

SIZES = (100, 600, 3000, SLOT_BYTES + 1)
MANIFESTS = {nbytes: manifest_of(nbytes) for nbytes in SIZES}
FINAL = {
    MicroBatchState.CONSUMED: Told.CONSUMED,
    MicroBatchState.LOST: Told.LOST,
    MicroBatchState.DROPPED: Told.DROPPED,
}


@dataclasses.dataclass
class Work:
    """A key of an orchestrator: what was asked about it last, and is repeated until it is answered."""

    key: str
    nbytes: int
    request: Offer | Await | None = None
    repeats: int = 0
    is_staged: bool = False


class SoakOrchestrator:
    """An orchestrator that stages each key until it is told a final outcome, as a client would."""

    def __init__(self, soak: LedgerSoak, name: str) -> None:
        self.soak = soak
        self.name = name
        self.life = 0
        self.told: list[OrchestratorLine] = []
        self.works: dict[str, Work] = {}
        self.keys = itertools.count(1)
        self.asleep_until = 0.0
        self.rise()

    def rise(self) -> None:
        """Begins a life; what has no final outcome is gone on with."""
        self.life += 1
        self.address = Address(Channel.CONTROL, f"{self.name}.{self.life}".encode())
        for work in self.works.values():
            work.request = None
        self.say_hello()

    def say_hello(self) -> None:
        peer = Peer(name=self.name, pid=self.life, host="there")
        self.say(Hello(id=self.soak.driver.new_id(), version=PROTOCOL_VERSION, peer=peer))

    def say(self, request: ControlRequest) -> None:
        self.soak.to_daemon(self.address, request)

    def write(self, key: str, what: Told, code: str = "") -> None:
        at = self.soak.moment()
        self.told.append(OrchestratorLine(at=at, life=self.life, key=key, what=what, digest=key, code=code))

    def act(self) -> None:
        """Begins a key if it has few, and says what is due about one."""
        if len(self.works) < 3 and not self.soak.is_draining:
            key = f"{self.name}/{next(self.keys)}"
            self.works[key] = Work(key, self.soak.chance.choice(SIZES))
        if self.works:
            self.go_on(self.soak.chance.choice(list(self.works.values())))

    def go_on(self, work: Work) -> None:
        """Says what comes next about a key, or repeats what was not answered."""
        if work.request is not None:
            work.repeats += 1
        elif work.is_staged:
            work.request = Await(
                id=self.soak.driver.new_id(), queue="train", key=work.key, until=MicroBatchState.CONSUMED
            )
        else:
            attempt = f"{work.key}@{self.life}.{self.soak.driver.new_id()}"
            work.repeats = 0
            work.request = Offer(
                id=self.soak.driver.new_id(),
                queue="train",
                key=work.key,
                attempt=attempt,
                manifest=MANIFESTS[work.nbytes],
                wait_s=self.soak.chance.choice((0.0, 5.0, 30.0)),
                **self.soak.body_of(work),
            )
            self.write(work.key, Told.ATTEMPT)
        self.say(work.request)

    def cancel(self) -> None:
        """Cancels a stage call, which abandons its attempt."""
        works = [work for work in self.works.values() if isinstance(work.request, Offer)]
        if works:
            work = self.soak.chance.choice(works)
            self.write(work.key, Told.CANCELLED)
            self.abandon(work)

    def abandon(self, work: Work) -> None:
        offer = work.request
        assert isinstance(offer, Offer)
        new_id = self.soak.driver.new_id()
        work.request = None
        self.say(Abandon(id=new_id, queue=offer.queue, key=offer.key, attempt=offer.attempt))

    def hear(self, messages: Sequence[Message]) -> None:
        for message in messages:
            work = next(
                (
                    work
                    for work in self.works.values()
                    if work.request is not None and work.request.id == message.id
                ),
                None,
            )
            if work is not None:
                self.hear_about(work, message)

    def hear_about(self, work: Work, message: Message) -> None:
        match message:
            case Granted():
                self.soak.chunks += chunk_headers(message, work.nbytes)
            case Staged(state=state):
                self.write(work.key, Told.STAGED, state)
                work.request, work.is_staged = None, True
                self.end_if_over(work, state)
            case Reached(state=state) if isinstance(work.request, Await):
                self.end_if_over(work, state)
            case Gone(state=state):
                self.end_if_over(work, state)
            case Refused(code=RefusalCode.HELLO_FIRST):
                self.say_hello()
                assert work.request is not None
                self.say(work.request)
            case Refused():
                self.hear_refusal(work, message)

    def hear_refusal(self, work: Work, refused: Refused) -> None:
        self.write(work.key, Told.REFUSED, refused.code)
        if refused.code is RefusalCode.CONSUMED:
            self.end_if_over(work, MicroBatchState.CONSUMED)
        elif isinstance(work.request, Await):
            work.request, work.is_staged = None, refused.code is not RefusalCode.UNKNOWN_KEY
        elif refused.code is RefusalCode.IN_USE:
            work.request, work.is_staged = None, True
        elif work.repeats:
            self.abandon(work)
        else:
            work.request = None

    def end_if_over(self, work: Work, state: MicroBatchState) -> None:
        if state in FINAL:
            self.write(work.key, FINAL[state], "by name")
            self.works.pop(work.key, None)
