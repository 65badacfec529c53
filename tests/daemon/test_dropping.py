"""What is abandoned or reset, and what the trainer keeps of it."""

from __future__ import annotations

import pytest

from forebay.wire import (
    Gone,
    Granted,
    MicroBatchState,
    Reached,
    RefusalCode,
    Refused,
    WasReset,
)

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer

READY, ON_DEVICE, CONSUMED = MicroBatchState.READY, MicroBatchState.ON_DEVICE, MicroBatchState.CONSUMED


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3)


# --- abandon ---


def test_abandon_gives_a_filling_slot_back(driver: Driver, sender: Sender) -> None:
    grant = sender.grant("k")
    assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED
    assert driver.states() == ["FREE"] * 3
    assert driver.headers[grant.slot].state.name == "FREE"


def test_abandon_takes_a_ready_entry_out_of_the_queue(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    assert only(sender.abandon("a"), Reached).state is MicroBatchState.DROPPED
    assert driver.ready() == ("b",)


def test_abandon_takes_an_offer_out_of_the_line(driver: Driver, sender: Sender) -> None:
    for key in ("x", "y", "z"):
        sender.grant(key)
    sender.offer("k")
    assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED
    assert driver.status().waiting_offers == 0


@pytest.mark.parametrize("way", ["lent", "quarantined", "on_device", "consumed"])
def test_abandon_leaves_what_the_trainer_holds_or_has_trained(
    driver: Driver, sender: Sender, trainer: Trainer, way: str
) -> None:
    sender.stage("k")
    [lend] = trainer.lends(1)
    if way == "quarantined":
        trainer.detach()
    elif way != "lent":
        trainer.promoted(lend)
    if way == "consumed":
        trainer.finished("k")
    expected = {"on_device": ON_DEVICE, "consumed": CONSUMED}.get(way, READY)
    with driver.nothing_moves():
        assert only(sender.abandon("k"), Reached).state is expected


def test_an_abandon_that_is_repeated_gets_the_same_answer(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    sender.abandon("k")
    with driver.nothing_moves():
        for _ in range(3):
            assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED


def test_an_abandon_of_a_replaced_attempt_leaves_its_successor(driver: Driver, sender: Sender) -> None:
    sender.stage("k", "old")
    sender.stage("k", "new")
    with driver.nothing_moves():
        assert only(sender.abandon("k", "old"), Reached).state is MicroBatchState.DROPPED
    assert driver.ready() == ("k",)


def test_an_abandon_of_an_attempt_that_the_daemon_has_not_is_in_order_and_neither_told_nor_counted(
    driver: Driver, sender: Sender
) -> None:
    for key in ("x", "y", "z"):
        sender.grant(key)
    assert only(sender.offer("k", wait_s=0.0), Refused).code is RefusalCode.NO_SLOT
    told, counted = len(driver.logs), driver.status().counters
    with driver.nothing_moves():
        assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED
        assert only(sender.abandon("never offered"), Reached).state is MicroBatchState.DROPPED
        assert only(sender.abandon("x", "another"), Reached).state is MicroBatchState.DROPPED
    assert (driver.logs[told:], driver.status().counters) == ([], counted)


# --- reset ---


def test_reset_drops_all_that_the_trainer_does_not_hold_and_tells_the_senders(trainer: Trainer) -> None:
    driver = Driver(slots=4)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    for key in ("on device", "lent", "ready"):
        sender.stage(key)
    trainer.promoted(trainer.lends(1)[0])
    trainer.lends(2)
    filler, waiter, other = (Sender(driver, name) for name in ("filler", "waiter", "other"))
    filler.grant("filling")
    other.stage("other", queue="eval")
    assert waiter.offer("waiting") == []
    operator = Sender(driver, "operator")
    assert only(operator.reset(), WasReset).dropped == 3
    for told in (filler, waiter):
        refused = only(told.heard(), Refused)
        assert refused.code is RefusalCode.DROPPED
        assert "'train' was reset" in refused.words
    assert driver.ready() == ()
    assert sorted(driver.states()) == ["FREE", "FREE", "LENT", "READY"]
    assert driver.on_device() == ("on device",)
    assert driver.ready("eval") == ("other",)


@pytest.mark.parametrize("end", ["dies", "detaches first"])
def test_what_a_trainer_held_at_a_reset_is_dropped_when_it_comes_back(
    driver: Driver, sender: Sender, trainer: Trainer, end: str
) -> None:
    for key in ("held", "given back", "later"):
        sender.stage(key)
        if key == "given back":
            held, given_back = trainer.lends(2)
            assert only(sender.reset(), WasReset).dropped == 0
    trainer.promoted(given_back)
    if end == "detaches first":
        trainer.detach()
    trainer.die()
    assert driver.ready() == ("later",)
    assert driver.states().count("FREE") == 2
    gone = only(sender.wait_for("held"), Gone)
    assert (gone.state, gone.reason) == (MicroBatchState.DROPPED, "the queue was reset")
    assert only(sender.offer("held", "anew"), Granted).slot == held.slot


def test_a_reset_that_is_repeated_or_of_an_unknown_queue_drops_nothing(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    sender.reset()
    with driver.nothing_moves():
        for queue in ("train", "unknown", "", "q" * 100):
            assert only(sender.reset(queue), WasReset).dropped == 0


def test_after_a_reset_those_who_wait_in_other_queues_are_served(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    other = Sender(driver, "other")
    assert other.offer("k", queue="eval") == []
    sender.reset()
    assert only(other.heard(), Granted).slot >= 0
