"""What the same attempt gets when it is offered again: what the first time got, or would have got."""

from __future__ import annotations

import pytest

from forebay.wire import Granted, MicroBatchState, Reached, RefusalCode, Refused, Staged

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers
from .offer_ways import (
    Way,
    consumed,
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
    waiting,
    waiting_then_reset,
)


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


@pytest.mark.parametrize(
    ("way", "state"),
    [
        (ready, "ready"),
        (lent, "ready"),
        (quarantined, "ready"),
        (on_device, "on_device"),
        (consumed, "consumed"),
        (lost, "lost"),
        (given_up_by_the_trainer, "dropped"),
        (ready_then_reset, "dropped"),
        (ready_then_abandoned, "dropped"),
    ],
)
def test_a_repeat_of_what_was_staged_says_staged_and_moves_nothing(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way, state: str
) -> None:
    way(driver, sender, trainer)
    for _ in range(5):
        with driver.nothing_moves():
            assert only(sender.offer("k"), Staged).state == state
    assert driver.count("published") == 1


@pytest.mark.parametrize("way", [waiting, reserving])
def test_a_repeat_of_what_waits_is_told_so_and_moves_nothing(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    with driver.nothing_moves():
        assert only(sender.offer("k", nbytes=40_000), Reached).state is MicroBatchState.OFFERED


@pytest.mark.parametrize("way", [filling_then_reset, filling_then_abandoned, waiting_then_reset])
def test_a_repeat_of_what_was_dropped_on_its_way_is_refused_with_the_reason(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    sender.heard()
    with driver.nothing_moves():
        refused = only(sender.offer("k"), Refused)
    assert refused.code is RefusalCode.DROPPED
    assert ("reset" in refused.words) or ("abandoned" in refused.words)


def test_a_repeat_while_filling_is_told_exactly_what_is_missing(driver: Driver, sender: Sender) -> None:
    first = sender.grant("k", nbytes=256 * 8 + 10)
    headers = chunk_headers(first, 256 * 8 + 10)
    for index in (0, 3, 4, 7):
        driver.chunk(headers[index])
    with driver.nothing_moves():
        again = only(sender.offer("k", nbytes=256 * 8 + 10), Granted)
    assert again.missing == ((1, 2), (5, 2), (8, 1))
    assert again.received_bytes == 4 * 256
    assert (again.slot, again.generation, again.token) == (first.slot, first.generation, first.token)


def test_a_repeat_never_names_more_runs_than_fit_an_answer() -> None:
    driver, nbytes = Driver(slots=1), 256 * 250
    sender = Sender(driver)
    sender.offer("k", nbytes=nbytes)
    driver.grow(0)
    headers = chunk_headers(only(sender.heard(), Granted), nbytes)
    for header in headers[::2]:
        driver.chunk(header)
    again = only(sender.offer("k", nbytes=nbytes), Granted)
    assert len(again.missing) == 125
    for header in chunk_headers(again, nbytes):
        assert driver.chunk(header) is None
    assert only(sender.heard(), Staged).state is MicroBatchState.READY


def test_the_answer_goes_to_the_latest_connection_that_asked_with_its_latest_id(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    waiting(driver, sender, trainer)
    reconnected = Sender(driver, "the same orchestrator, reconnected")
    assert only(reconnected.offer("k"), Reached).state is MicroBatchState.OFFERED
    sender.abandon("other0")
    grant = only(reconnected.heard(), Granted)
    assert reconnected.fill(grant).id == grant.id
    assert sender.heard() == []


def test_a_lost_staged_answer_and_five_repeats_publish_once(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    for _ in range(5):
        assert only(sender.offer("k"), Staged).state is MicroBatchState.READY
    assert driver.ready() == ("k",)
    assert [lend.key for lend in trainer.lends(10)] == ["k"]
    assert (driver.count("published"), driver.states()) == (1, ["LENT", "FREE"])


def test_a_superseded_attempt_is_told_so_and_never_becomes_a_duplicate(driver: Driver, sender: Sender) -> None:
    sender.stage("k", "old")
    sender.stage("k", "new")
    for _ in range(5):
        with driver.nothing_moves():
            assert only(sender.offer("k", "old"), Refused).code is RefusalCode.REPLACED
    assert driver.ready() == ("k",)


def test_a_superseded_attempt_stays_so_when_its_successor_is_gone(driver: Driver, sender: Sender) -> None:
    sender.stage("k", "old")
    sender.stage("k", "new")
    sender.reset()
    with driver.nothing_moves():
        assert only(sender.offer("k", "old"), Refused).code is RefusalCode.REPLACED


def test_an_attempt_name_that_was_superseded_for_one_key_is_free_for_another(sender: Sender) -> None:
    sender.stage("a", "1")
    sender.stage("a", "2")
    assert only(sender.offer("b", "1"), Granted).attempt == "1"


def test_an_attempt_that_had_a_place_and_fell_silent_goes_on_in_that_place(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    sender.grant("a", "another")
    driver.pass_time(100.0)
    sender.heard()
    sender.fill(only(sender.offer("a", "another"), Granted))
    assert driver.ready() == ("a", "b")
