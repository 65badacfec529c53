"""Any history of offers, chunks, deaths and restarts: no slot is lost, nothing is trained twice."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.shm import Envelope, SlotState
from forebay.wire import (
    Attached,
    ChunkHeader,
    Done,
    Drain,
    Forget,
    Forgotten,
    Granted,
    KeyGone,
    Lend,
    Message,
    MicroBatchState,
    Offer,
    Order,
    Pause,
    Refused,
    Resume,
    Stale,
    Valves,
)

from .ledger_driver import INSPECTOR, SLOT_BYTES, Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers, manifest_of

KEYS = ("a", "b", "c", "d")
QUEUES = ("train", "eval")
SIZES = (0, 100, 600, SLOT_BYTES + 1)
MANIFESTS = {nbytes: manifest_of(nbytes) for nbytes in SIZES}
ENDED = ("consumed", "dropped", "lost")

key = st.sampled_from(KEYS)
queue = st.sampled_from(QUEUES)
pick = st.integers(0, 1 << 16)
version = st.sampled_from([None, None, 0, 1, 2, 3, 4])


class SimulatedTrainer(Trainer):
    """A trainer that knows what it holds."""

    def __init__(self, driver: Driver, holder: str, queue: str) -> None:
        super().__init__(driver, holder, queue=queue)
        self.is_attached = False
        self.credit_total = 0
        self.held: dict[int, Lend] = {}
        self.on_device: dict[str, str] = {}
        self.stale: set[tuple[int, int]] = set()


class LedgerHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(
            slots=3,
            fill_lease_s=10.0,
            await_lease_s=20.0,
            max_waiting_offers=4,
            max_versions_behind=1,
            max_age_s=200.0,
        )
        self.sender = Sender(self.driver)
        self.offers: list[Offer] = []
        self.chunks: list[ChunkHeader] = []
        self.trainers: dict[str, SimulatedTrainer] = {}
        self.holders = 0
        self.old_lends: list[Lend] = []
        self.published: collections.Counter[tuple[str, str]] = collections.Counter()
        self.ended: collections.Counter[tuple[str, str]] = collections.Counter()
        self.consumed: set[tuple[str, str]] = set()

    # Offers.

    @initialize()
    def begin(self) -> None:
        for name in QUEUES:
            self._attach_new(name)

    @rule(
        key=key,
        queue=queue,
        nbytes=st.sampled_from(SIZES),
        wait_s=st.sampled_from([0.0, 5.0, 100.0]),
        version=version,
        expires_s=st.sampled_from([None, None, 0.0, 3.0, 50.0]),
    )
    def offer(
        self,
        key: str,
        queue: str,
        nbytes: int,
        wait_s: float,
        version: int | None = None,
        expires_s: float | None = None,
    ) -> None:
        offer = Offer(
            queue=queue,
            key=key,
            attempt=f"attempt{len(self.offers)}",
            manifest=MANIFESTS[nbytes],
            wait_s=wait_s,
            policy_version=version,
            expires_s=expires_s,
        )
        self.offers.append(offer)
        self._say_offer(offer)

    @rule(key=key, queue=queue, nbytes=st.sampled_from(SIZES), version=version)
    def stage(self, key: str, queue: str, nbytes: int, version: int | None) -> None:
        self.offer(key, queue, nbytes, 5.0, version)
        while self.driver.growing:
            self.driver.grow(next(iter(self.driver.growing)))
        self.all_that_was_told_is_heard()
        self.bring_all_chunks()

    @precondition(lambda self: self.offers)
    @rule(back=pick)
    def repeat_an_offer(self, back: int) -> None:
        self._say_offer(self.offers[-1 - back % min(len(self.offers), 8)])

    def _say_offer(self, offer: Offer) -> None:
        messages = self.sender.say(msgspec.structs.replace(offer, id=self.driver.new_id()))
        if (offer.queue, offer.key) in self.consumed:
            # Trained, and the daemon remembers it: whatever the attempt, nothing is granted.
            assert not any(isinstance(message, Granted) for message in messages), messages
        self._heard_by_sender(messages)

    def _heard_by_sender(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Granted):
                offer = next(offer for offer in self.offers if offer.attempt == message.attempt)
                nbytes = next(nbytes for nbytes, manifest in MANIFESTS.items() if manifest == offer.manifest)
                self.chunks.extend(chunk_headers(message, nbytes))

    @precondition(lambda self: self.chunks)
    @rule(first=pick, count=st.integers(1, 70))
    def bring_chunks(self, first: int, count: int) -> None:
        # Old ones again as well: of spans that arrived, of grants that are over.
        start = first % len(self.chunks)
        for header in self.chunks[start : start + count]:
            self._bring(header)

    @precondition(lambda self: self.chunks)
    @rule()
    def bring_all_chunks(self) -> None:
        headers, self.chunks = self.chunks, []
        for header in headers:
            self._bring(header)

    def _bring(self, header: ChunkHeader) -> None:
        if self.driver.chunk(header) is None:
            self.all_that_was_told_is_heard()

    @rule(queue=queue, version=st.integers(0, 4))
    def advance(self, queue: str, version: int) -> None:
        self._heard_by_sender(self.sender.advance(version, queue=queue))

    @precondition(lambda self: self.offers)
    @rule(back=pick)
    def abandon(self, back: int) -> None:
        offer = self.offers[-1 - back % min(len(self.offers), 8)]
        self._heard_by_sender(self.sender.abandon(offer.key, offer.attempt, queue=offer.queue))

    def reset(self, queue: str) -> None:
        self._heard_by_sender(self.sender.reset(queue))

    @rule(key=key, queue=queue, until=st.sampled_from(MicroBatchState))
    def wait(self, key: str, queue: str, until: MicroBatchState) -> None:
        self._heard_by_sender(self.sender.wait_for(key, until, queue=queue))

    # An operator.

    @rule(order=st.sampled_from([Drain(), Pause(), Pause(queue="train"), Resume(), Resume(), Resume()]))
    def an_operator_orders(self, order: Order) -> None:
        only(self.driver.say(INSPECTOR, order), Valves)

    @rule(key=key, queue=queue)
    def an_operator_has_it_forgotten(self, key: str, queue: str) -> None:
        only_one = self.driver.say(INSPECTOR, Forget(queue=queue, key=key))
        assert isinstance(only_one[0], Forgotten | Refused)
        if isinstance(only_one[0], Forgotten):
            assert (queue, key) not in self.consumed, "what was trained is forgotten only by who says so"

    # Slots and time.

    @precondition(lambda self: self.driver.growing)
    @rule(succeeds=st.booleans())
    def end_a_growth(self, succeeds: bool) -> None:
        slot = next(iter(self.driver.growing))
        if succeeds:
            self.driver.grow(slot)
        else:
            self.driver.fail_to_grow(slot)

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.5, 10.0, 101.0]))
    def pass_time(self, seconds: float) -> None:
        self.driver.pass_time(seconds)

    # Trainers.

    def _attach_new(self, queue: str) -> None:
        self.holders += 1
        trainer = SimulatedTrainer(self.driver, f"holder{self.holders}", queue)
        messages = trainer.attach()
        if queue in self.trainers:
            assert [type(message) for message in messages] == [Refused]
            return
        self._heard_by_trainer(trainer, messages)
        self.trainers[queue] = trainer

    @rule(queue=queue)
    def another_trainer_comes(self, queue: str) -> None:
        self._attach_new(queue)

    @rule(queue=queue, knows=st.booleans())
    def trainer_attaches_again(self, queue: str, knows: bool) -> None:
        trainer = self.trainers.get(queue)
        if trainer is None:
            return
        if not knows:
            trainer.held.clear()
        self._attach_again(trainer)

    def _attach_again(self, trainer: SimulatedTrainer) -> None:
        held = [(lend.slot, lend.generation) for lend in trainer.held.values()]
        trainer.credit_total = 0
        self._heard_by_trainer(trainer, trainer.attach(held=held, on_device=list(trainer.on_device.items())))
        assert trainer.is_attached

    @rule(queue=queue, more=st.integers(0, 3), keys=st.lists(key, max_size=2))
    def want(self, queue: str, more: int, keys: list[str]) -> None:
        if (trainer := self.trainers.get(queue)) is not None:
            trainer.credit_total += more
            self._heard_by_trainer(trainer, trainer.want(trainer.credit_total, *keys))

    @rule(queue=queue, reason=st.sampled_from(["", "", "", "it did not fit"]))
    def train(self, queue: str, reason: str) -> None:
        if queue not in self.trainers:
            self._attach_new(queue)
        if not self.trainers[queue].is_attached:
            self.trainers.pop(queue).die()
            self._attach_new(queue)
        self.want(queue, 1, [])
        self.promote(queue, 0)
        self.finish_what_is_on_the_device(queue, 0, reason)

    @rule(queue=queue, index=pick)
    def promote(self, queue: str, index: int) -> None:
        trainer = self.trainers.get(queue)
        if trainer is None or not trainer.held:
            return
        lend = list(trainer.held.values())[index % len(trainer.held)]
        envelope = msgspec.msgpack.decode(self.driver.headers[lend.slot].envelope, type=Envelope)
        assert (envelope.queue, envelope.key) == (queue, lend.key)
        if self._released(trainer, lend, trainer.promoted(lend)):
            trainer.on_device[lend.key] = envelope.attempt
            self.old_lends.append(lend)

    def _released(self, trainer: SimulatedTrainer, lend: Lend, messages: list[Message]) -> bool:
        is_done = any(isinstance(message, Done) for message in messages)
        if is_done:
            # Before what else is told: another micro-batch may already have been lent in the same slot.
            del trainer.held[lend.slot]
        self._heard_by_trainer(trainer, messages)
        return is_done

    @precondition(lambda self: self.old_lends)
    @rule(queue=queue, index=pick)
    def repeat_a_promotion(self, queue: str, index: int) -> None:
        if (trainer := self.trainers.get(queue)) is not None:
            self._heard_by_trainer(trainer, trainer.promoted(self.old_lends[index % len(self.old_lends)]))

    @rule(queue=queue, index=pick, reason=st.sampled_from(["", "it did not fit"]))
    def finish_what_is_on_the_device(self, queue: str, index: int, reason: str) -> None:
        trainer = self.trainers.get(queue)
        if trainer is None or not trainer.on_device:
            return
        name = list(trainer.on_device)[index % len(trainer.on_device)]
        messages = trainer.finished(name, reason=reason)
        self._heard_by_trainer(trainer, messages)
        if any(isinstance(message, Done) for message in messages):
            del trainer.on_device[name]

    @rule(queue=queue, index=pick, reason=st.sampled_from(["", "it did not fit"]))
    def finish_what_is_lent(self, queue: str, index: int, reason: str) -> None:
        trainer = self.trainers.get(queue)
        if trainer is None or not trainer.held:
            return
        lend = list(trainer.held.values())[index % len(trainer.held)]
        self._released(trainer, lend, trainer.finished(lend.key, lend=lend, reason=reason))

    @rule(queue=queue)
    def drop_what_is_stale(self, queue: str) -> None:
        trainer = self.trainers.get(queue)
        for lend in list(trainer.held.values()) if trainer is not None else ():
            assert trainer is not None
            if (lend.slot, lend.generation) in trainer.stale:
                messages = trainer.finished(lend.key, lend=lend, reason="stale", stale=True)
                self._released(trainer, lend, messages)

    @rule(queue=queue, key=key)
    def finish_what_nobody_has(self, queue: str, key: str) -> None:
        trainer = self.trainers.get(queue)
        if trainer is not None and key not in trainer.on_device:
            # Only of a key that was trained would a trainer say so again; the daemon takes its word.
            reason = "" if (queue, key) in self.consumed else "it was never here"
            self._heard_by_trainer(trainer, trainer.finished(key, reason=reason))

    def detach(self, queue: str) -> None:
        if (trainer := self.trainers.get(queue)) is not None:
            self._heard_by_trainer(trainer, trainer.detach())
            trainer.is_attached = False
            trainer.on_device.clear()

    def die(self, queue: str) -> None:
        if (trainer := self.trainers.pop(queue, None)) is not None:
            trainer.die()

    def _heard_by_trainer(self, trainer: SimulatedTrainer, messages: list[Message]) -> None:
        on_credit: list[int] = []
        for message in messages:
            match message:
                case Attached():
                    trainer.is_attached = True
                case Lend():
                    self._is_lent(trainer, message)
                    if message.on_credit:
                        on_credit.append(self.driver.headers[message.slot].sequence)
                case Stale():
                    self._is_stale(trainer, message)
                case Done() | KeyGone():
                    assert trainer.is_attached
                case _:
                    assert isinstance(message, Refused), message
                    assert not trainer.is_attached, message
        if on_credit:
            self._lent_in_order(trainer, on_credit)

    def _is_lent(self, trainer: SimulatedTrainer, lend: Lend) -> None:
        assert lend.slot not in trainer.held, "lent twice"
        trainer.held[lend.slot] = lend
        assert lend.expires_s != 0.0 or not lend.on_credit, "lent though it was stale"

    def _is_stale(self, trainer: SimulatedTrainer, stale: Stale) -> None:
        assert trainer.held[stale.slot].generation == stale.generation
        trainer.stale.add((stale.slot, stale.generation))

    def _lent_in_order(self, trainer: SimulatedTrainer, on_credit: list[int]) -> None:
        headers = zip(self.driver.headers, self.driver.status().slots, strict=True)
        waiting = [
            header.sequence
            for header, row in headers
            if header.state is SlotState.READY and row.queue == trainer.queue and row.stale_in_s != 0.0
        ]
        assert on_credit == sorted(on_credit)
        assert not waiting or on_credit[-1] < min(waiting), "not in order"

    @rule(queue=queue, what=st.sampled_from([reset, detach, die]))
    def something_ends(self, queue: str, what: Callable[[LedgerHistories, str], None]) -> None:
        what(self, queue)

    # The daemon.

    @rule(survivors=st.lists(queue, max_size=3), really=st.booleans())
    def restart(self, survivors: list[str], really: bool) -> None:
        if not really:
            return  # else no history would be long
        watched_before = set(self.driver.watched)
        self.driver.restart()
        self.chunks.clear()
        self.sender.say_hello()
        for name, trainer in list(self.trainers.items()):
            if name in survivors and trainer.is_attached:
                self._attach_again(trainer)
                continue
            del self.trainers[name]
            if trainer.holder in self.driver.watched:
                trainer.die()
        assert set(self.driver.watched) <= watched_before

    # What must always hold.

    @invariant()
    def all_that_was_told_is_heard(self) -> None:
        self._heard_by_sender(self.sender.heard())
        for trainer in self.trainers.values():
            self._heard_by_trainer(trainer, trainer.heard())

    @invariant()
    def what_a_trainer_holds_is_not_touched(self) -> None:
        for trainer in self.trainers.values():
            for lend in trainer.held.values():
                slot, header = self.driver.slots[lend.slot], self.driver.headers[lend.slot]
                assert slot.generation == lend.generation
                assert slot.state in (SlotState.LENT, SlotState.QUARANTINED)
                assert header.holder == trainer.holder

    @invariant()
    def every_slot_in_use_belongs_to_a_key_and_every_ready_one_is_queued(self) -> None:
        status = self.driver.status()
        for row in status.slots:
            assert (row.key != "") is (row.state != "FREE"), row
        in_slots = sorted((row.queue, row.key) for row in status.slots if row.state == "READY")
        assert in_slots == sorted((found.name, ready) for found in status.queues for ready in found.ready)

    @invariant()
    def every_publication_ends_once(self) -> None:
        for log in self.driver.logs:
            fields: dict[str, Any] = log.fields
            name = (fields.get("queue", ""), fields.get("key", ""))
            if log.event == "ready":
                self.published[name] += 1
            elif log.event in ENDED:
                if log.event == "consumed":
                    self.consumed.add(name)
                elif self.published[name] == self.ended[name]:
                    continue  # it was never published
                self.ended[name] += 1
            assert 0 <= self.published[name] - self.ended[name] <= 1, (name, log)
        self.driver.logs.clear()

    def teardown(self) -> None:
        for trainer in list(self.trainers.values()):
            trainer.die()
        assert self.driver.watched == []
        # What waits is refused, what grows has grown, what is filling then is taken back.
        self.driver.pass_time(1_000_000.0)
        while self.driver.growing:
            self.driver.grow(next(iter(self.driver.growing)))
        self.driver.pass_time(1_000_000.0)
        assert set(self.driver.states()) <= {"FREE", "READY"}
        for name in QUEUES:
            self.sender.reset(name)
        self.every_publication_ends_once()
        assert self.driver.states() == ["FREE"] * 3
        assert self.driver.status().waiting_offers == 0
        assert self.driver.ledger.next_deadline() is None
        assert self.published == self.ended
        # And all of them can be used again.
        self.an_operator_orders(Resume())
        for slot in range(3):
            self.sender.heard()
            messages = self.sender.offer(f"last{slot}", nbytes=100)
            assert [type(message) for message in messages] == [Granted]


# To shrink a history that fails takes minutes: add Phase.shrink while looking for the cause.
LedgerHistories.TestCase.settings = settings(
    max_examples=300, stateful_step_count=60, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
TestLedgerHistories = LedgerHistories.TestCase
