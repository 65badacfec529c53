"""Since when: a new daemon says of what it found what the one before it would have said."""

from __future__ import annotations

import msgspec
import pytest

from forebay.daemon.actions import WriteOutcome
from forebay.wire import MicroBatchState, Peek, Peeked, QueueStatus, SlotStatus

from .ledger_driver import INSPECTOR, Driver, only
from .ledger_peers import Sender, Trainer
from .test_measures import measured

DOWN_S = 3.0


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=4)


def restart(driver: Driver, *, ran_s: float) -> None:
    driver.pass_time(ran_s)
    driver.now += DOWN_S
    driver.restart()


def slot_of(driver: Driver, key: str) -> SlotStatus:
    return next(slot for slot in driver.status().slots if slot.key == key)


def queue_of(driver: Driver) -> QueueStatus:
    return driver.status().queues[0]


def peeked(driver: Driver, key: str) -> Peeked:
    return only(driver.say(INSPECTOR, Peek(id=driver.new_id(), queue="train", key=key)), Peeked)


def test_how_long_a_micro_batch_has_been_ready(driver: Driver, sender: Sender) -> None:
    sender.stage("a")
    restart(driver, ran_s=10.0)
    assert slot_of(driver, "a").age_s == peeked(driver, "a").age_s == 10.0 + DOWN_S
    assert slot_of(driver, "a").held_s == 0.0


def test_how_long_a_trainer_has_held_a_slot_whether_or_not_it_attaches_again(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    driver.pass_time(2.0)
    lend = trainer.lends(1)[0]
    restart(driver, ran_s=10.0)
    assert (slot_of(driver, "a").age_s, slot_of(driver, "a").held_s) == (12.0 + DOWN_S, 10.0 + DOWN_S)
    trainer.attach(held=[(lend.slot, lend.generation)])
    assert peeked(driver, "a").held_s == 10.0 + DOWN_S
    driver.pass_time(1.0)
    trainer.promoted(lend)
    assert measured(driver)["lent_s"] == (1, 11.0 + DOWN_S)


def test_a_slot_that_a_dead_trainer_gave_back_is_held_by_nobody_after_two_restarts(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.lends(1)
    restart(driver, ran_s=10.0)
    trainer.die()
    driver.pass_time(5.0)
    before = slot_of(driver, "a")
    assert (before.held_s, before.age_s) == (0.0, 15.0 + DOWN_S)
    restart(driver, ran_s=0.0)
    after = slot_of(driver, "a")
    assert (after.held_s, after.age_s) == (0.0, 15.0 + 2 * DOWN_S)


def test_how_long_a_key_has_been_on_the_device(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    assert peeked(driver, "a").held_s == 0.0, "it has left its slot"
    restart(driver, ran_s=10.0)
    assert peeked(driver, "a").held_s == 0.0
    assert queue_of(driver).on_device_s == (10.0 + DOWN_S,)
    trainer.attach(on_device=[("a", "train/a/1")])
    driver.pass_time(1.0)
    assert queue_of(driver).on_device_s == (11.0 + DOWN_S,)
    trainer.finished("a")
    assert measured(driver)["on_device_s"] == (1, 11.0 + DOWN_S)


@pytest.mark.parametrize("is_back", [False, True])
def test_a_trainer_that_is_not_back_when_it_dies_may_have_died_before(
    driver: Driver, sender: Sender, trainer: Trainer, is_back: bool
) -> None:
    sender.stage("a")
    lend = trainer.lends(1)[0]
    restart(driver, ran_s=10.0)
    if is_back:
        trainer.attach(held=[(lend.slot, lend.generation)])
    driver.pass_time(2.0)
    driver.lock_is_free("holder1")
    driver.pass_time(1.0)
    queue = queue_of(driver)
    assert queue.last_trainer is not None
    assert (queue.gone_s, queue.was_seen_to_go) == (1.0, is_back)


def test_a_trainer_is_attached_since_it_attached_to_this_daemon(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    lend = trainer.lends(1)[0]
    restart(driver, ran_s=10.0)
    driver.pass_time(100.0)
    assert (queue_of(driver).trainer_is_back, queue_of(driver).trainer_since_s) == (False, 0.0)
    trainer.attach(held=[(lend.slot, lend.generation)])
    driver.pass_time(1.0)
    trainer.attach(held=[(lend.slot, lend.generation)])
    assert (queue_of(driver).trainer_is_back, queue_of(driver).trainer_since_s) == (True, 1.0)


@pytest.mark.parametrize("at", [0.0, -5.0, 1e300, float("inf"), float("nan")])
def test_a_time_of_another_clock_in_the_journal_is_taken_for_the_start(
    driver: Driver, sender: Sender, trainer: Trainer, at: float
) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    [outcome] = driver.journal
    driver.forget_journal()
    driver.perform([WriteOutcome(msgspec.structs.replace(outcome, at=at))])
    restart(driver, ran_s=10.0)
    driver.pass_time(1.0)
    assert queue_of(driver).on_device_s == (1.0,)


def test_how_long_ago_a_micro_batch_ended(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    trainer.finished("a")
    restart(driver, ran_s=10.0)
    assert (peeked(driver, "a").state, peeked(driver, "a").age_s) == (MicroBatchState.CONSUMED, 10.0 + DOWN_S)
