"""What came with its offer and is published: repeats, newer attempts, its place in the queue, and a drain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.wire import Granted, Lend, MicroBatchState, Reached, RefusalCode, Refused, Staged

from .eager_driver import EagerDriver, body_of, offer_eagerly
from .ledger_driver import only
from .ledger_peers import Sender, Trainer


@pytest.fixture
def driver() -> EagerDriver:
    return EagerDriver(slots=4)


def stage(driver: EagerDriver, sender: Sender, *keys: str) -> None:
    for key in keys:
        only(offer_eagerly(driver, sender, key), Staged)


def ready(_driver: EagerDriver, _trainer: Trainer) -> None:
    pass


def lent(_driver: EagerDriver, trainer: Trainer) -> None:
    assert len(trainer.lends(1)) == 1


def on_device(_driver: EagerDriver, trainer: Trainer) -> None:
    trainer.promoted(trainer.lends(1)[0])


def consumed(driver: EagerDriver, trainer: Trainer) -> None:
    on_device(driver, trainer)
    trainer.finished("k")


def restarted(driver: EagerDriver, _trainer: Trainer) -> None:
    driver.restart()


Way = Callable[[EagerDriver, Trainer], None]


# --- again ---


@pytest.mark.parametrize(
    ("way", "state"), [(ready, "ready"), (lent, "ready"), (on_device, "on_device"), (consumed, "consumed")]
)
def test_a_repeat_says_staged_and_moves_nothing(
    driver: EagerDriver, sender: Sender, trainer: Trainer, way: Way, state: str
) -> None:
    stage(driver, sender, "k")
    way(driver, trainer)
    driver.forget()
    for _ in range(5):
        with driver.nothing_moves():
            assert only(offer_eagerly(driver, sender, "k"), Staged).state == state
    assert (driver.bodies, driver.count("published")) == ({}, 1)


def test_a_repeat_after_a_restart_of_the_daemon_says_staged_and_is_in_the_queue_once(
    driver: EagerDriver, sender: Sender
) -> None:
    stage(driver, sender, "k")
    driver.restart()
    sender.say_hello()
    for _ in range(3):
        assert only(offer_eagerly(driver, sender, "k"), Staged).state is MicroBatchState.READY
    assert (driver.ready(), driver.states()) == (("k",), ["READY", "FREE", "FREE", "FREE"])


def test_the_answer_goes_to_the_latest_connection_that_asked(driver: EagerDriver, sender: Sender) -> None:
    for key in "abcd":
        sender.grant(key)
    offer_eagerly(driver, sender, "k")
    reconnected = Sender(driver, "the same orchestrator, reconnected")
    only(offer_eagerly(driver, reconnected, "k"), Reached)
    sender.abandon("a")
    assert sender.heard() == []
    only(reconnected.heard(), Staged)


# --- a newer attempt ---


def second_of(driver: EagerDriver, name: str = "newer") -> Sender:
    newer = Sender(driver, name)
    only(offer_eagerly(driver, newer, "k", "second", body=body_of("the second")), Staged)
    return newer


def test_a_newer_attempt_takes_the_place_of_what_is_ready(driver: EagerDriver, sender: Sender) -> None:
    stage(driver, sender, "j", "k", "l")
    second_of(driver)
    assert driver.ready() == ("j", "k", "l")
    [slot] = [slot for slot in driver.status().slots if slot.key == "k"]
    assert driver.bodies[slot.index] == body_of("the second")
    assert driver.states().count("READY") == 3
    with driver.nothing_moves():
        assert only(offer_eagerly(driver, sender, "k"), Refused).code is RefusalCode.REPLACED


def test_a_newer_attempt_ends_one_that_is_filling(driver: EagerDriver, sender: Sender) -> None:
    sender.grant("k")
    second_of(driver)
    assert only(sender.heard(), Refused).code is RefusalCode.REPLACED
    assert (driver.ready(), driver.is_filling(), driver.states().count("FREE")) == (("k",), False, 3)


def test_a_newer_attempt_gets_the_slot_that_it_frees(sender: Sender, driver: EagerDriver) -> None:
    stage(driver, sender, "i", "j", "k", "l")
    assert offer_eagerly(driver, sender, "waits") == []
    second_of(driver)
    assert driver.ready() == ("i", "j", "k", "l")


@pytest.mark.parametrize(
    ("way", "code"),
    [(lent, RefusalCode.IN_USE), (on_device, RefusalCode.IN_USE), (consumed, RefusalCode.CONSUMED)],
)
def test_a_newer_attempt_is_refused_once_the_trainer_has_the_key(
    driver: EagerDriver, sender: Sender, trainer: Trainer, way: Way, code: RefusalCode
) -> None:
    stage(driver, sender, "k")
    way(driver, trainer)
    driver.forget()
    with driver.nothing_moves():
        assert only(offer_eagerly(driver, sender, "k", "second"), Refused).code is code
    assert driver.bodies == {}


@pytest.mark.parametrize("end", ["reset", "abandon"])
def test_what_is_dropped_frees_its_slot_and_is_not_published_again(
    driver: EagerDriver, sender: Sender, end: str
) -> None:
    stage(driver, sender, "k")
    if end == "reset":
        sender.reset()
    else:
        sender.abandon("k")
    assert (driver.ready(), driver.states()) == ((), ["FREE"] * 4)
    with driver.nothing_moves():
        assert only(offer_eagerly(driver, sender, "k"), Staged).state is MicroBatchState.DROPPED


# --- the trainer's view ---


def test_the_order_is_that_of_publication(driver: EagerDriver, sender: Sender, trainer: Trainer) -> None:
    slow = sender.grant("slow")
    stage(driver, sender, "a", "b")
    sender.fill(slow)
    stage(driver, sender, "c")
    assert driver.ready() == ("a", "b", "slow", "c")
    assert [lend.key for lend in trainer.lends(4)] == ["a", "b", "slow", "c"]


def test_those_that_wait_are_published_in_the_order_of_their_offers(
    driver: EagerDriver, sender: Sender, trainer: Trainer
) -> None:
    grants = [sender.grant(key) for key in "wxyz"]
    for key in "abc":
        assert offer_eagerly(driver, sender, key) == []
    sender.fill(grants[3])
    for key in "xyw":
        sender.abandon(key)
    assert driver.ready() == ("z", "a", "b", "c")
    assert [lend.key for lend in trainer.lends(9)] == ["z", "a", "b", "c"]


def test_a_trainer_that_waits_is_lent_it_at_once_and_the_next_when_it_has_room(
    driver: EagerDriver, sender: Sender, trainer: Trainer
) -> None:
    assert trainer.lends(1) == []
    stage(driver, sender, "a", "b")
    lend = only(trainer.heard(), Lend)
    assert (lend.key, lend.generation, driver.bodies[lend.slot]) == ("a", 1, body_of("a"))
    assert [lend.key for lend in trainer.lends(2)] == ["b"]


def test_a_key_that_is_waited_for_goes_first(driver: EagerDriver, sender: Sender, trainer: Trainer) -> None:
    assert trainer.lends(0, "b") == []
    stage(driver, sender, "a", "b")
    assert only(trainer.heard(), Lend).key == "b"
    assert driver.ready() == ("a",)


def test_those_who_wait_for_the_key_hear_of_it(driver: EagerDriver, sender: Sender) -> None:
    for key in "wxyz":
        sender.grant(key)
    offer_eagerly(driver, sender, "k")
    other = Sender(driver, "other")
    assert other.wait_for("k", MicroBatchState.READY) == []
    sender.abandon("w")
    assert only(other.heard(), Reached).state is MicroBatchState.READY


# --- a drain ---


def test_a_drain_keeps_what_is_published_and_takes_no_more(driver: EagerDriver, sender: Sender) -> None:
    stage(driver, sender, "a")
    grant = sender.grant("filling")
    driver.perform(driver.ledger.drain(driver.now))
    driver.forget()
    with driver.nothing_moves():
        assert only(offer_eagerly(driver, sender, "b"), Refused).code is RefusalCode.DRAINING
        assert only(offer_eagerly(driver, sender, "a"), Staged).state is MicroBatchState.READY
    sender.fill(grant)
    assert (driver.ready(), driver.bodies) == (("a", "filling"), {})
    assert isinstance(grant, Granted)
