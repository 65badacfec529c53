"""Whoever awaits a key is told when it gets there, or that it never will."""

from __future__ import annotations

import pytest

from forebay.wire import Gone, MicroBatchState, Reached, RefusalCode, Refused

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers

READY, ON_DEVICE, CONSUMED = MicroBatchState.READY, MicroBatchState.ON_DEVICE, MicroBatchState.CONSUMED
AWAIT_LEASE_S = 60.0


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3, await_lease_s=AWAIT_LEASE_S)


def test_a_state_that_was_reached_is_told_at_once(sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    assert only(sender.wait_for("k", READY), Reached).state is READY
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.wait_for("k", READY), Reached).state is ON_DEVICE
    trainer.finished("k")
    for until in (READY, ON_DEVICE, CONSUMED):
        assert only(sender.wait_for("k", until), Reached).state is CONSUMED


def test_a_state_is_told_when_it_is_reached_and_no_earlier(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    grant = sender.grant("k")
    waits = {until: driver.new_id() for until in (READY, ON_DEVICE, CONSUMED)}
    for until, number in waits.items():
        assert sender.wait_for("k", until, id=number) == []

    def told() -> list[tuple[int, MicroBatchState]]:
        return [(message.id, message.state) for message in sender.heard() if isinstance(message, Reached)]

    for header in chunk_headers(grant):
        driver.chunk(header)
    assert told() == [(waits[READY], READY)]
    [lend] = trainer.lends(1)
    assert told() == []
    trainer.promoted(lend)
    assert told() == [(waits[ON_DEVICE], ON_DEVICE)]
    trainer.finished("k")
    assert told() == [(waits[CONSUMED], CONSUMED)]
    assert driver.ledger.next_deadline() is None


def test_a_key_that_ends_early_is_told_gone_with_the_reason(sender: Sender) -> None:
    sender.stage("k")
    assert sender.wait_for("k") == []
    sender.abandon("k")
    told = sender.wait_for("k", READY)
    assert [(message.state, message.reason) for message in told if isinstance(message, Gone)] == [
        (MicroBatchState.DROPPED, "abandoned by its sender")
    ]


def test_those_who_wait_are_told_gone_when_it_happens(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    watcher = Sender(driver, "watcher")
    assert watcher.wait_for("k") == []
    sender.reset()
    gone = only(watcher.heard(), Gone)
    assert (gone.state, gone.reason) == (MicroBatchState.DROPPED, "the queue was reset")


def test_an_unknown_key_is_refused(driver: Driver, sender: Sender) -> None:
    sender.stage("k", queue="eval")
    with driver.nothing_moves():
        assert only(sender.wait_for("k"), Refused).code is RefusalCode.UNKNOWN_KEY


@pytest.mark.parametrize("until", [MicroBatchState.DROPPED, MicroBatchState.LOST])
def test_nobody_may_wait_for_an_end_in_failure(driver: Driver, sender: Sender, until: MicroBatchState) -> None:
    sender.stage("k")
    with driver.nothing_moves():
        assert only(sender.wait_for("k", until), Refused).code is RefusalCode.BAD_REQUEST
    sender.reset()
    with driver.nothing_moves():
        assert only(sender.wait_for("k", until), Refused).code is RefusalCode.BAD_REQUEST


def test_a_wait_that_is_repeated_gets_one_answer(sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    for _ in range(5):
        assert sender.wait_for("k", ON_DEVICE, id=77) == []
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Reached).id == 77


def test_two_peers_with_the_same_id_both_get_an_answer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    other = Sender(driver, "other")
    sender.stage("k")
    assert sender.wait_for("k", ON_DEVICE, id=77) == other.wait_for("k", ON_DEVICE, id=77) == []
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Reached).id == only(other.heard(), Reached).id == 77


def test_a_wait_that_nobody_repeats_is_forgotten_after_its_lease(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    sender.wait_for("k", ON_DEVICE, id=77)
    assert driver.ledger.next_deadline() == driver.now + AWAIT_LEASE_S
    driver.pass_time(AWAIT_LEASE_S)
    assert driver.ledger.next_deadline() is None
    trainer.promoted(trainer.lends(1)[0])
    assert sender.heard() == []


def test_a_repeated_wait_renews_its_lease(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    for _ in range(3):
        sender.wait_for("k", ON_DEVICE, id=77)
        driver.pass_time(AWAIT_LEASE_S - 1)
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Reached).id == 77


def test_of_two_waits_the_one_that_was_repeated_ends_last_though_it_came_first(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    first, second = driver.new_id(), driver.new_id()
    sender.wait_for("k", id=first)
    sender.wait_for("k", id=second)
    driver.pass_time(AWAIT_LEASE_S / 2)
    sender.wait_for("k", id=first)
    driver.pass_time(AWAIT_LEASE_S / 2)
    trainer.promoted(trainer.lends(1)[0])
    trainer.finished("k")
    assert [message.id for message in sender.heard() if isinstance(message, Reached)] == [first]


def test_who_waits_for_an_offer_that_is_refused_learns_it_at_the_latest_when_asking_again(driver: Driver) -> None:
    driver = Driver(slots=1)
    sender, watcher = Sender(driver), Sender(driver, "watcher")
    sender.grant("x")
    assert sender.offer("k", wait_s=5.0) == []
    assert watcher.wait_for("k", READY, id=1) == []
    driver.pass_time(5.0)
    told = [*watcher.heard(), *watcher.wait_for("k", READY, id=1)]
    assert told
    assert all(isinstance(message, Gone | Refused) for message in told)


def test_who_awaits_a_key_whose_offer_found_no_slot_is_told(driver: Driver, sender: Sender) -> None:
    for index in range(len(driver.slots)):
        sender.grant(f"x{index}")
    other = Sender(driver, "other")
    assert other.offer("a", wait_s=5.0) == []
    assert sender.wait_for("a") == []
    driver.pass_time(5.0)
    assert only(sender.heard(), Gone).reason == "no slot became free"


def test_who_awaits_a_key_that_a_trainer_comes_back_with_is_told(driver: Driver, sender: Sender) -> None:
    sender.grant("a")
    other = Sender(driver, "other")
    assert other.wait_for("a", MicroBatchState.ON_DEVICE) == []
    Trainer(driver, "holder9", queue="train").attach(on_device=[("a", "train/a/1")])
    assert only(other.heard(), Reached).state is MicroBatchState.ON_DEVICE
