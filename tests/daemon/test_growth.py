"""Slots that grow: for the offer that needs it, and ahead of need."""

from __future__ import annotations

import pytest

from forebay.wire import Granted, Reached, RefusalCode, Refused

from .ledger_driver import SLOT_BYTES, Driver, only
from .ledger_peers import Sender, Trainer

BIG = 40_000


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3)


def test_a_slot_grows_before_it_is_granted(driver: Driver, sender: Sender) -> None:
    assert sender.offer("k", nbytes=BIG) == []
    assert list(driver.growing) == [0]
    assert driver.growing[0] > BIG
    driver.grow(0)
    grant = only(sender.heard(), Granted)
    assert (grant.slot, driver.slots[0].slot_bytes > BIG) == (0, True)
    sender.fill(grant, nbytes=BIG)
    assert driver.ready() == ("k",)


def test_a_micro_batch_that_fits_makes_nothing_grow(driver: Driver, sender: Sender) -> None:
    sender.stage("k", nbytes=SLOT_BYTES - 4096 - 200)
    assert driver.growing == {}


def test_the_smallest_slot_that_fits_is_taken_and_else_the_largest_grows(driver: Driver, sender: Sender) -> None:
    driver.slots[1].slot_bytes = 64 << 10
    driver.slots[2].slot_bytes = 32 << 10
    assert sender.grant("a").slot == 0
    assert sender.grant("b").slot == 2
    sender.abandon("a")
    sender.abandon("b")
    assert sender.grant("c", nbytes=BIG).slot == 1
    assert sender.offer("d", nbytes=BIG) == []
    assert list(driver.growing) == [2]


def test_other_offers_are_granted_while_a_slot_grows(driver: Driver, sender: Sender) -> None:
    assert sender.offer("big", nbytes=BIG) == []
    assert sender.grant("small").slot == 1
    assert list(driver.growing) == [0]


def test_when_one_slot_has_grown_the_other_free_ones_grow_too_one_after_another(
    driver: Driver, sender: Sender
) -> None:
    sender.offer("k", nbytes=BIG)
    size = driver.growing[0]
    driver.grow(0)
    assert driver.growing == {1: size}
    driver.grow(1)
    assert driver.growing == {2: size}
    driver.grow(2)
    assert driver.growing == {}


def test_an_offer_does_not_get_a_slot_that_grows_ahead_of_need(driver: Driver, sender: Sender) -> None:
    sender.offer("k", nbytes=BIG)
    driver.grow(0)
    sender.heard()
    assert list(driver.growing) == [1]
    assert sender.grant("a").slot == 2
    assert sender.offer("b") == []
    driver.grow(1)
    assert only(sender.heard(), Granted).slot == 1


def test_a_slot_that_was_in_use_grows_when_an_offer_needs_it(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.grant(key)
    sender.offer("k", nbytes=BIG)
    driver.grow(2)
    sender.heard()
    assert driver.growing == {}
    sender.abandon("a")
    assert sender.offer("l", nbytes=BIG) == []
    assert list(driver.growing) == [0]


def test_nothing_grows_ahead_of_need_while_the_daemon_drains(driver: Driver, sender: Sender) -> None:
    sender.offer("k", nbytes=BIG)
    driver.perform(driver.ledger.drain(driver.now))
    driver.grow(0)
    assert only(sender.heard(), Granted).slot == 0
    assert driver.growing == {}


def test_a_slot_that_cannot_grow_is_free_again_and_the_offer_is_told_why(driver: Driver, sender: Sender) -> None:
    before = driver.slots[0].slot_bytes
    sender.offer("k", nbytes=BIG)
    driver.fail_to_grow(0, "shared memory at /dev/shm is too small; got 1 bytes free; limit 2 bytes needed")
    refused = only(sender.heard(), Refused)
    assert refused.code is RefusalCode.SHM_FULL
    assert "/dev/shm" in refused.words
    assert driver.states() == ["FREE"] * 3
    assert (driver.slots[0].slot_bytes, driver.growing) == (before, {})
    assert sender.grant("small").slot == 0


def test_another_stage_call_may_try_again_after_shared_memory_was_full(driver: Driver, sender: Sender) -> None:
    sender.offer("k", nbytes=BIG)
    driver.fail_to_grow(0)
    refused = only(sender.heard(), Refused)
    with driver.nothing_moves():
        repeated = only(sender.offer("k", nbytes=BIG), Refused)
    assert (repeated.code, repeated.words) == (refused.code, refused.words)
    assert sender.offer("k", "another", nbytes=BIG) == []
    driver.grow(0)
    assert only(sender.heard(), Granted).attempt == "another"


def test_nothing_grows_ahead_of_need_after_a_growth_failed(driver: Driver, sender: Sender) -> None:
    sender.offer("k", nbytes=BIG)
    driver.grow(0)
    sender.heard()
    driver.fail_to_grow(1)
    assert driver.growing == {}
    sender.stage("small")
    sender.reset()
    assert driver.growing == {}
    sender.offer("l", nbytes=BIG)
    assert driver.growing == {}, "the slot that has grown is free"
    sender.heard()
    sender.offer("m", nbytes=BIG)
    assert len(driver.growing) == 1, "an offer that needs the room tries"


def test_a_failed_growth_ahead_of_need_harms_nobody(driver: Driver, sender: Sender) -> None:
    sender.offer("k", nbytes=BIG)
    driver.grow(0)
    grant = only(sender.heard(), Granted)
    driver.fail_to_grow(1)
    assert sender.heard() == []
    assert driver.states() == ["FILLING", "FREE", "FREE"]
    sender.fill(grant, nbytes=BIG)


def test_those_who_wait_are_served_after_a_growth_failed() -> None:
    driver = Driver(slots=1)
    sender = Sender(driver)
    sender.offer("big", nbytes=BIG)
    assert sender.offer("small") == []
    driver.fail_to_grow(0)
    refused, granted = sender.heard()
    assert isinstance(refused, Refused)
    assert isinstance(granted, Granted)
    assert granted.attempt == "train/small/1"


@pytest.mark.parametrize("end", ["abandon", "reset", "replace"])
def test_an_offer_that_ends_while_its_slot_grows_gives_it_back(driver: Driver, sender: Sender, end: str) -> None:
    sender.offer("k", nbytes=BIG)
    if end == "abandon":
        only(sender.abandon("k"), Reached)
    elif end == "reset":
        sender.reset()
    else:
        Sender(driver, "other").offer("k", "another", nbytes=10)
    sender.heard()
    assert driver.states() == (["FREE"] * 3 if end != "replace" else ["FREE", "FILLING", "FREE"])
    assert list(driver.growing) == [0], "it still grows, and nobody is given it meanwhile"
    driver.grow(0)
    assert sender.heard() == []
    assert driver.slots[0].slot_bytes > BIG
    assert sender.offer("l", nbytes=BIG) != []


def test_a_growth_that_fails_after_its_offer_ended_is_nobodys_refusal(driver: Driver, sender: Sender) -> None:
    sender.offer("k", nbytes=BIG)
    sender.abandon("k")
    driver.fail_to_grow(0)
    assert sender.heard() == []
    assert driver.states() == ["FREE"] * 3


def test_a_slot_that_grows_is_filling_for_the_drain(driver: Driver, sender: Sender) -> None:
    sender.offer("k", nbytes=BIG)
    driver.perform(driver.ledger.drain(driver.now))
    assert driver.is_filling()
    driver.grow(0)
    sender.fill(only(sender.heard(), Granted), nbytes=BIG)
    assert not driver.is_filling()


def test_a_lend_tells_the_size_that_the_slot_has_grown_to(driver: Driver, sender: Sender) -> None:
    trainer = Trainer(driver)
    trainer.attach()
    sender.offer("k", nbytes=BIG)
    driver.grow(0)
    sender.fill(only(sender.heard(), Granted), nbytes=BIG)
    [lend] = trainer.lends(1)
    assert lend.file_bytes == driver.slots[0].slot_bytes > BIG


def test_an_offer_for_which_nothing_can_grow_waits_for_a_slot_that_is_large_enough_already() -> None:
    driver = Driver(slots=2)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    assert sender.offer("large", nbytes=40_000) == []
    driver.grow(0)
    sender.fill(only(sender.heard(), Granted), nbytes=40_000)
    driver.fail_to_grow(1)  # ahead of need
    assert sender.offer("next", nbytes=40_000, wait_s=30.0) == []
    driver.fail_to_grow(1)
    assert (driver.states(), sender.heard()) == (["READY", "FREE"], [])
    # It takes nothing from those that fit, and does not ask for the impossible over and over.
    assert driver.growing == {}
    sender.stage("small")
    driver.pass_time(1.0)
    assert driver.growing == {}
    [large] = [lend for lend in trainer.lends(1) if lend.key == "large"]
    trainer.promoted(large)
    sender.fill(only(sender.heard(), Granted), nbytes=40_000)
    assert driver.ready() == ("small", "next")


def test_an_offer_that_waits_for_a_large_slot_in_vain_is_told_who_holds_it() -> None:
    driver = Driver(slots=2)
    sender = Sender(driver)
    sender.offer("large", nbytes=40_000)
    driver.grow(0)
    sender.fill(only(sender.heard(), Granted), nbytes=40_000)
    driver.fail_to_grow(1)
    sender.offer("next", nbytes=40_000, wait_s=5.0)
    driver.fail_to_grow(1)
    driver.pass_time(5.0)
    refused = only(sender.heard(), Refused)
    assert (refused.code, "slot 0 READY 'large'" in refused.words) == (RefusalCode.NO_SLOT, True)
    assert driver.states() == ["READY", "FREE"]
