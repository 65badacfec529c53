"""A soak without a process: the real ledger, the trainer's real conversation, orchestrators, and random faults.

Everything that happens follows from one seed. Messages are lost both ways, calls are repeated and cancelled, each
party is killed or sleeps beyond every lease, queues are reset. What orchestrators and trainers do and are told is
written into the same books as in `forebay bench soak`, and balanced by the same accounts. A history that fails is
run again by its seed alone.
"""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from typing import Any

from forebay.benchmarks.soak_accounts import Accounts, account
from forebay.benchmarks.soak_words import TrainerLine
from forebay.daemon.actions import Address, Channel
from forebay.wire import ChunkHeader, ControlRequest, Reset, TrainerRequest, chunk_checksum

from .eager_driver import MAX_EAGER_BYTES, EagerDriver, body_of
from .soak_orchestrator import SoakOrchestrator, Work
from .soak_trainer import SoakTrainer

LEASE_S, AWAIT_LEASE_S = 10.0, 20.0
DRAIN_ROUNDS = 600


class LedgerSoak:
    """One history.

    Args:
        seed: Everything follows from it.
        steps: Random events before all is let come to its end.
    """

    def __init__(self, seed: int, steps: int = 150) -> None:
        self.chance = random.Random(seed)
        self.steps = steps
        self.driver = EagerDriver(slots=3, fill_lease_s=LEASE_S, await_lease_s=AWAIT_LEASE_S, max_waiting_offers=4)
        self.is_draining = False
        self.did: list[TrainerLine] = []
        self.chunks: list[ChunkHeader] = []
        self.seen: collections.Counter[str] = collections.Counter()
        self.cut_until = 0.0
        self._moments = itertools.count(1)
        self._dead: list[str] = []
        self.orchestrators = [SoakOrchestrator(self, f"o{number}") for number in range(2)]
        self.trainer = SoakTrainer(self, 1)

    def body_of(self, work: Work) -> dict[str, Any]:
        """Returns what may come with an offer: the whole body, now and then."""
        if work.nbytes > MAX_EAGER_BYTES or self.chance.random() < 0.5:
            return {}
        body = body_of(work.key, work.nbytes)
        return {"body": body, "checksum": chunk_checksum(body, 0)}

    def moment(self) -> float:
        """Returns a time that no two lines share."""
        return float(next(self._moments))

    # The network.

    def to_daemon(self, sender: Address, request: ControlRequest | TrainerRequest) -> None:
        """Brings a message to the daemon, or loses it."""
        if self.is_lost():
            return
        ledger, now = self.driver.ledger, self.driver.now
        if sender.channel is Channel.CONTROL:
            self.driver.perform(ledger.control(sender, request, now))  # type: ignore[arg-type]
        else:
            self.driver.perform(ledger.trainer(sender, request, now))  # type: ignore[arg-type]

    def is_lost(self) -> bool:
        """Whether a message is lost now."""
        if self.is_draining:
            return False
        is_cut = self.driver.now < self.cut_until
        return self.chance.random() < (0.7 if is_cut else 0.03)

    def deliver(self, party: SoakOrchestrator | SoakTrainer) -> None:
        """Brings a party what the daemon told it, less what is lost; in order."""
        party.hear([message for message in self.driver.heard(party.address) if not self.is_lost()])

    # Events.

    def run(self) -> Accounts:
        """Runs the history, lets all come to its end, and balances the books."""
        events: dict[Callable[[], None], float] = {
            self.orchestrator_acts: 22,
            self.trainer_acts: 22,
            self.all_hear: 16,
            self.bring_chunks: 14,
            self.end_a_growth: 4,
            self.let_time_pass: 6,
            self.kill_orchestrator: 1.5,
            self.kill_trainer: 1.5,
            self.trainer_leaves: 0.7,
            self.kill_daemon: 1.5,
            self.end_daemon: 0.7,
            self.stop_orchestrator: 1,
            self.stop_trainer: 1,
            self.stop_daemon: 1,
            self.cut: 1,
            self.cancel: 1.5,
            self.reset: 0.3,
            self.notice_deaths: 4,
        }
        for event in self.chance.choices(list(events), list(events.values()), k=self.steps):
            event()
        self.drain()
        told = [line for orchestrator in self.orchestrators for line in orchestrator.told]
        return account(sorted(told, key=lambda line: line.at), self.did)

    def awake(self) -> list[SoakOrchestrator]:
        return [each for each in self.orchestrators if each.asleep_until <= self.driver.now]

    def orchestrator_acts(self) -> None:
        if awake := self.awake():
            self.chance.choice(awake).act()

    def trainer_acts(self) -> None:
        if self.trainer.asleep_until <= self.driver.now:
            self.trainer.act()

    def all_hear(self) -> None:
        for orchestrator in self.awake():
            self.deliver(orchestrator)
        if self.trainer.asleep_until <= self.driver.now:
            self.deliver(self.trainer)

    def bring_chunks(self) -> None:
        count = self.chance.randrange(1, 40)
        batch, self.chunks = self.chunks[:count], self.chunks[count:]
        self.chance.shuffle(batch)
        for header in batch:
            if not self.is_lost():
                self.driver.chunk(header)

    def end_a_growth(self) -> None:
        if self.driver.growing:
            slot = next(iter(self.driver.growing))
            if self.is_draining or self.chance.random() < 0.9:
                self.driver.grow(slot)
            else:
                self.driver.fail_to_grow(slot)

    def let_time_pass(self) -> None:
        self.driver.pass_time(self.chance.choice((0.1, 0.5, 2.0, 4.0)))

    # Faults.

    def kill_orchestrator(self) -> None:
        self.seen["kill orchestrator"] += 1
        orchestrator = self.chance.choice(self.orchestrators)
        self.driver.heard(orchestrator.address)
        orchestrator.asleep_until = 0.0
        orchestrator.rise()

    def kill_trainer(self) -> None:
        self.seen["kill trainer"] += 1
        self.next_trainer()

    def trainer_leaves(self) -> None:
        if self.trainer.asleep_until <= self.driver.now and self.trainer.leave():
            self.seen["trainer leaves"] += 1
            self.next_trainer()

    def next_trainer(self) -> None:
        self.driver.heard(self.trainer.address)
        self._dead.append(self.trainer.holder)
        self.trainer = SoakTrainer(self, self.trainer.life + 1)

    def notice_deaths(self) -> None:
        """The kernel tells the daemon of the locks that are free."""
        for holder in list(self.driver.watched):
            if holder in self._dead:
                self.driver.lock_is_free(holder)

    def end_daemon(self) -> None:
        """An orderly end that keeps the pool: nothing new is taken, and what is filling may finish."""
        self.seen["end daemon"] += 1
        self.driver.perform(self.driver.ledger.drain(self.driver.now))
        for event in (self.orchestrator_acts, self.bring_chunks, self.trainer_acts, self.all_hear):
            event()
        self.restart()

    def kill_daemon(self) -> None:
        self.seen["kill daemon"] += 1
        self.restart()

    def restart(self) -> None:
        self.driver.forget()
        self.driver.restart()
        # Most of them notice the new connection at once; those who do not repeat what they said.
        if self.chance.random() < 0.8 and self.trainer.asleep_until <= self.driver.now:
            self.trainer.say(self.trainer.conversation.reconnected(self.driver.now))

    def stop_orchestrator(self) -> None:
        self.seen["stop orchestrator"] += 1
        orchestrator = self.chance.choice(self.orchestrators)
        orchestrator.asleep_until = self.driver.now + self.chance.choice((LEASE_S, AWAIT_LEASE_S)) + 1

    def stop_trainer(self) -> None:
        self.seen["stop trainer"] += 1
        self.trainer.asleep_until = self.driver.now + AWAIT_LEASE_S + 1

    def stop_daemon(self) -> None:
        """Time passes without a tick: what was sent meanwhile comes before it."""
        self.seen["stop daemon"] += 1
        self.driver.now += self.chance.choice((LEASE_S, AWAIT_LEASE_S)) + 1
        for event in (self.bring_chunks, self.orchestrator_acts, self.trainer_acts):
            event()
        self.driver.pass_time(0.0)

    def cut(self) -> None:
        self.seen["cut"] += 1
        self.cut_until = self.driver.now + self.chance.choice((1.0, 4.0, LEASE_S + 1))

    def cancel(self) -> None:
        if awake := self.awake():
            self.seen["cancel"] += 1
            self.chance.choice(awake).cancel()

    def reset(self) -> None:
        self.seen["reset"] += 1
        orchestrator = self.orchestrators[0]
        orchestrator.say(Reset(id=self.driver.new_id(), queue="train"))

    # The end.

    def drain(self) -> None:
        """Lets everybody work without faults until all keys have their outcomes and all slots are free."""
        self.is_draining = True
        self.driver.pass_time(AWAIT_LEASE_S + 2)
        # A daemon that nobody was told of is noticed by its connection.
        self.trainer.say(self.trainer.conversation.reconnected(self.driver.now))
        for _ in range(DRAIN_ROUNDS):
            if self.is_over():
                return
            self.round()
        status = self.driver.status()
        works = [work for orchestrator in self.orchestrators for work in orchestrator.works.values()]
        raise AssertionError(f"stuck: {status.slots}, {status.queues}, {works}, {self.trainer.entries}")

    def is_over(self) -> bool:
        has_works = any(orchestrator.works for orchestrator in self.orchestrators)
        return not has_works and set(self.driver.states()) == {"FREE"} and not self.driver.status().waiting_offers

    def round(self) -> None:
        self.notice_deaths()
        for orchestrator in self.orchestrators:
            for work in list(orchestrator.works.values()):
                orchestrator.go_on(work)
            self.deliver(orchestrator)
        while self.driver.growing:
            self.end_a_growth()
        while self.chunks:
            self.bring_chunks()
        for step in (self.trainer.promote, self.trainer.begin, self.trainer.finish, self.trainer.tick):
            step()
            self.deliver(self.trainer)
        self.driver.pass_time(1.0)
