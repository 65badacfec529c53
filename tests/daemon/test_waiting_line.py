"""Offers wait for a slot in a line, and are told who has the slots when none gets free."""

from __future__ import annotations

import pytest

from forebay.wire import Granted, RefusalCode, Refused

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


def test_offers_wait_for_a_slot_in_their_order(driver: Driver, sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    for key in ("a", "b", "c"):
        assert sender.offer(key) == []
    granted = []
    for key in ("x", "y"):
        messages = sender.abandon(key)
        granted += [message.attempt for message in messages if isinstance(message, Granted)]
    assert granted == ["train/a/1", "train/b/1"]
    assert driver.status().waiting_offers == 1


def test_a_slot_that_the_trainer_releases_goes_to_whoever_waits(sender: Sender, trainer: Trainer) -> None:
    sender.stage("x")
    sender.stage("y")
    assert sender.offer("a") == []
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Granted).attempt == "train/a/1"


def test_an_offer_that_waited_too_long_is_refused_with_who_holds_the_slots_and_for_how_long(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("x")
    trainer.lends(1)
    driver.pass_time(5.0)
    sender.stage("y")
    assert sender.offer("a", wait_s=30.0) == []
    driver.pass_time(29.0)
    assert sender.heard() == []
    driver.pass_time(1.0)
    refused = only(sender.heard(), Refused)
    assert refused.code is RefusalCode.NO_SLOT
    for word in ("'a'", "slot 0 LENT 'x' for 35.0 s", "slot 1 READY 'y' for 30.0 s"):
        assert word in refused.words
    for word in ("trainer-holder1", "pid 4711", "gpu-host"):
        assert word in refused.words, "a slow trainer must be named"
    assert driver.status().waiting_offers == 0
    assert driver.states() == ["LENT", "READY"]


def test_an_offer_that_does_not_wait_is_refused_at_once(driver: Driver, sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    with driver.nothing_moves():
        assert only(sender.offer("a", wait_s=0.0), Refused).code is RefusalCode.NO_SLOT


def test_an_offer_that_does_not_wait_is_granted_a_free_slot(sender: Sender) -> None:
    assert only(sender.offer("a", wait_s=0.0), Granted).slot == 0


def test_the_repeat_of_a_refused_offer_is_refused_too_and_takes_no_slot(driver: Driver, sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    refused = only(sender.offer("a", wait_s=0.0), Refused)
    assert refused.code is RefusalCode.NO_SLOT
    sender.abandon("x")
    with driver.nothing_moves():
        repeated = only(sender.offer("a", wait_s=0.0), Refused)
    assert (repeated.code, repeated.words) == (refused.code, refused.words)
    assert only(sender.offer("a", "another", wait_s=0.0), Granted).attempt == "another"


def test_no_more_offers_wait_than_may() -> None:
    driver = Driver(slots=1, max_waiting_offers=2)
    sender = Sender(driver)
    sender.grant("x")
    assert sender.offer("a") == sender.offer("b") == []
    with driver.nothing_moves():
        refused = only(sender.offer("c"), Refused)
    assert refused.code is RefusalCode.TOO_MANY_OFFERS
    assert "2" in refused.words
    assert only(sender.offer("b", "another"), Refused).code is RefusalCode.REPLACED, "that is the one before it"
    assert driver.status().waiting_offers == 2
