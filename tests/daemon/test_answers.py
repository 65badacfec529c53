"""What every peer is told: which daemon it is, what that holds, and that it stops."""

from __future__ import annotations

import pytest

from forebay.wire import (
    PROTOCOL_VERSION,
    Goodbye,
    Granted,
    Hello,
    MicroBatchState,
    Peer,
    Reached,
    RefusalCode,
    Refused,
    Staged,
    Welcome,
)

from .ledger_driver import LIMITS, Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers

READY, CONSUMED = MicroBatchState.READY, MicroBatchState.CONSUMED


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3)


# --- hello ---


def test_a_client_of_another_version_is_told_both(driver: Driver) -> None:
    stranger = Sender(driver, "stranger", hello=False)
    hello = Hello(id=5, version=PROTOCOL_VERSION + 1, peer=Peer(name="x", pid=1, host="h"))
    with driver.nothing_moves():
        refused = only(stranger.say(hello), Refused)
    assert (refused.id, refused.code, refused.version) == (5, RefusalCode.VERSION, PROTOCOL_VERSION)
    assert f"protocol {PROTOCOL_VERSION + 1}" in refused.words
    assert f"daemon {PROTOCOL_VERSION}" in refused.words
    assert only(stranger.offer("k"), Refused).code is RefusalCode.HELLO_FIRST


def test_a_welcome_tells_limits_epoch_and_where_data_goes(driver: Driver) -> None:
    welcome = Sender(driver, "new", hello=False).say_hello()
    assert isinstance(welcome, Welcome)
    assert (welcome.limits, welcome.epoch, welcome.data_endpoint) == (LIMITS, "epoch-1", "ipc://data")


def test_no_more_peers_are_known_than_may_be_and_a_forgotten_one_says_hello_again() -> None:
    driver = Driver(max_peers=3)
    old = Sender(driver, "old")
    for index in range(3):
        Sender(driver, f"new{index}")
    assert only(old.offer("k"), Refused).code is RefusalCode.HELLO_FIRST
    old.say_hello()
    assert only(old.offer("k"), Granted).slot == 0


# --- looking ---


def test_the_status_tells_what_every_slot_and_queue_holds(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("lent")
    trainer.lends(1)
    sender.stage("ready")
    grant = sender.grant("filling")
    driver.chunk(chunk_headers(grant)[0])
    assert sender.offer("waiting") == []
    driver.now += 2.5
    status = driver.status()
    rows = [(row.state, row.key, row.payload_bytes, row.received_bytes) for row in status.slots]
    assert rows == [("LENT", "lent", 600, 0), ("READY", "ready", 600, 0), ("FILLING", "filling", 600, 256)]
    assert [row.age_s for row in status.slots] == [2.5] * 3
    assert status.slots[0].holder is not None
    assert status.slots[0].holder.pid == 4711
    [queue] = status.queues
    assert (queue.name, queue.ready, queue.trainer_since_s, status.waiting_offers) == ("train", ("ready",), 2.5, 1)


# --- drain and goodbye ---


def test_a_draining_daemon_takes_no_offers_and_lets_what_is_filling_finish(driver: Driver, sender: Sender) -> None:
    grant = sender.grant("filling")
    sender.stage("ready")
    sender.grant("other")
    sender.abandon("other")
    sender.grant("y")
    waiter = Sender(driver, "waiter")
    assert waiter.offer("waiting") == []
    assert driver.is_filling()
    driver.perform(driver.ledger.drain(driver.now))
    assert only(waiter.heard(), Refused).code is RefusalCode.DRAINING
    with driver.nothing_moves():
        assert only(sender.offer("new"), Refused).code is RefusalCode.DRAINING
        assert only(sender.offer("ready"), Staged).state is READY
    assert driver.status().draining
    sender.fill(grant)
    sender.abandon("y")
    assert not driver.is_filling()
    assert driver.ready() == ("ready", "filling")


def test_a_draining_daemon_still_serves_its_trainer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    driver.perform(driver.ledger.drain(driver.now))
    [lend] = trainer.lends(1)
    trainer.promoted(lend)
    trainer.finished("k")
    assert only(sender.wait_for("k"), Reached).state is CONSUMED


@pytest.mark.parametrize("kept", [True, False])
def test_a_goodbye_reaches_every_peer_and_attached_trainer_once(
    driver: Driver, sender: Sender, trainer: Trainer, kept: bool
) -> None:
    detached = Trainer(driver, "holder2", queue="eval")
    detached.attach()
    detached.detach()
    sender.stage("k")
    driver.perform(driver.ledger.goodbye(kept=kept))
    assert only(sender.heard(), Goodbye).kept is kept
    assert only(trainer.heard(), Goodbye).kept is kept
    assert detached.heard() == []
    assert driver.ready() == ("k",)
