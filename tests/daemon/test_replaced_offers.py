"""What another attempt for a key that is known gets: its place, or a refusal."""

from __future__ import annotations

import pytest

from forebay.wire import Granted, RefusalCode, Refused

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers
from .offer_ways import (
    Way,
    consumed,
    filling,
    filling_then_abandoned,
    filling_then_reset,
    given_up_by_the_trainer,
    lent,
    lost,
    on_device,
    quarantined,
    ready,
    ready_then_abandoned,
    ready_then_reset,
    reserving,
    too_large,
    waiting,
)


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


@pytest.mark.parametrize("way", [lent, quarantined, on_device])
def test_another_attempt_is_refused_while_the_trainer_holds_the_key(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    with driver.nothing_moves():
        assert only(sender.offer("k", "another"), Refused).code is RefusalCode.IN_USE


def test_another_attempt_is_refused_for_ever_once_the_key_was_trained(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    consumed(driver, sender, trainer)
    for attempt in ("another", "a third"):
        with driver.nothing_moves():
            assert only(sender.offer("k", attempt), Refused).code is RefusalCode.CONSUMED


@pytest.mark.parametrize(
    "way",
    [
        lost,
        given_up_by_the_trainer,
        ready_then_reset,
        ready_then_abandoned,
        filling_then_reset,
        filling_then_abandoned,
    ],
)
def test_another_attempt_is_admitted_anew_once_the_first_is_gone(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    sender.heard()
    sender.stage("k", "another")
    assert driver.ready() == ("k",)


@pytest.mark.parametrize("way", [ready, filling])
def test_another_attempt_takes_the_place_of_one_that_the_trainer_has_not(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    other = Sender(driver, "other")
    grant = other.grant("k", "another")
    told = sender.heard()
    assert [message.code for message in told if isinstance(message, Refused)] == (
        [RefusalCode.REPLACED] if way is filling else []
    )
    other.fill(grant)
    assert (driver.ready(), sorted(driver.states())) == (("k",), ["FREE", "READY"])


@pytest.mark.parametrize("way", [waiting, reserving])
def test_another_attempt_takes_the_place_of_one_that_waits(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    other = Sender(driver, "other")
    other.offer("k", "another")
    assert only(sender.heard(), Refused).code is RefusalCode.REPLACED
    assert driver.status().waiting_offers == (way is waiting)


def test_a_replaced_entry_keeps_its_place_in_the_queue() -> None:
    driver = Driver(slots=4)
    sender = Sender(driver)
    for key in ("a", "b", "c"):
        sender.stage(key)
    grant = sender.grant("b", "another")
    assert driver.ready() == ("a", "c")
    sender.fill(grant)
    assert driver.ready() == ("a", "b", "c")


def test_an_entry_that_was_replaced_twice_keeps_its_place_in_the_queue() -> None:
    driver = Driver(slots=4)
    sender = Sender(driver)
    for key in ("a", "b"):
        sender.stage(key)
    Sender(driver, "other").grant("a", "second")
    sender.stage("a", "third")
    assert driver.ready() == ("a", "b")


def test_a_replaced_offer_keeps_its_place_in_the_line(sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    for key in ("first", "second"):
        assert sender.offer(key) == []
    assert [type(message) for message in sender.offer("first", "another")] == [Refused]
    told = sender.abandon("x")
    assert [message.attempt for message in told if isinstance(message, Granted)] == ["another"]


def test_a_replacement_gets_the_slot_that_it_frees_before_those_who_wait(driver: Driver, sender: Sender) -> None:
    sender.stage("x")
    sender.stage("y")
    assert sender.offer("waits") == []
    grant = only(sender.offer("x", "another", wait_s=0.0), Granted)
    sender.fill(grant)
    assert driver.ready() == ("x", "y")


def test_chunks_for_a_replaced_attempt_are_thrown_away(driver: Driver, sender: Sender) -> None:
    old = sender.grant("k", "old")
    new = next(message for message in sender.offer("k", "new") if isinstance(message, Granted))
    with driver.nothing_moves():
        for header in chunk_headers(old):
            assert driver.chunk(header) is not None
    for header in chunk_headers(new):
        assert driver.chunk(header) is None
    assert driver.count("published") == 1


@pytest.mark.parametrize("way", [ready, filling])
@pytest.mark.parametrize("fault", ["manifest", "too large", "wait_s", "attempt", "draining"])
def test_a_replacement_that_is_refused_leaves_what_it_would_have_replaced(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way, fault: str
) -> None:
    way(driver, sender, trainer)
    if fault == "draining":
        driver.perform(driver.ledger.drain(driver.now))
    with driver.nothing_moves():
        refused = sender.offer(
            "k",
            "another" if fault != "attempt" else "a" * 65,
            manifest=b"garbage" if fault == "manifest" else too_large() if fault == "too large" else None,
            wait_s=-1.0 if fault == "wait_s" else 30.0,
        )
    only(refused, Refused)
