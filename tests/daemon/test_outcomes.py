"""What is remembered of what is over is bounded and small."""

from __future__ import annotations

import pytest

from forebay.wire import Gone, Granted, MicroBatchState, RefusalCode, Refused

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3)


def test_no_more_outcomes_are_remembered_than_may_be() -> None:
    driver = Driver(slots=1, remembered_keys=10)
    sender = Sender(driver)
    for index in range(100):
        sender.stage(f"key{index}")
        sender.reset()
    remembered = [
        index for index in range(100) if isinstance(sender.wait_for(f"key{index}", MicroBatchState.READY)[0], Gone)
    ]
    assert remembered == list(range(90, 100))


def test_no_more_replaced_attempts_are_remembered_than_may_be() -> None:
    driver = Driver(slots=2, remembered_keys=10)
    sender = Sender(driver)
    for index in range(30):
        sender.stage("k", f"attempt{index}")
    with driver.nothing_moves():
        assert only(sender.offer("k", "attempt28"), Refused).code is RefusalCode.REPLACED
        assert only(sender.offer("k", "attempt19"), Refused).code is RefusalCode.REPLACED
    assert only(sender.offer("k", "attempt18"), Granted).attempt == "attempt18"


def test_a_remembered_outcome_holds_no_envelope_no_layout_and_no_peer() -> None:
    driver = Driver(slots=2)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    for key in ("consumed", "reset"):
        sender.stage(key)
    trainer.promoted(trainer.lends(1)[0])
    trainer.finished("consumed")
    sender.reset()
    for key in ("consumed", "reset"):
        batch = driver.ledger._book.find("train", key)
        assert batch is not None
        assert (batch.envelope, batch.leaf_bytes, batch.arrivals, batch.sender, batch.slot) == (
            b"",
            (),
            None,
            None,
            -1,
        )


def test_what_is_on_the_device_holds_no_layout_either(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    trainer.promoted(trainer.lends(1)[0])
    batch = driver.ledger._book.find("train", "k")
    assert batch is not None
    assert (batch.arrivals, batch.slot) == (None, -1)
