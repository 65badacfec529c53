"""The ways in which a micro-batch gets to where it is when its key is offered once more."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .ledger_driver import LIMITS, Driver
from .ledger_peers import Sender, Trainer, manifest_of


def lent(_driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    assert len(trainer.lends(1)) == 1


def on_device(_driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    trainer.promoted(trainer.lends(1)[0])


def consumed(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    on_device(driver, sender, trainer)
    trainer.finished("k")


def lost(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    on_device(driver, sender, trainer)
    trainer.die()


def given_up_by_the_trainer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    on_device(driver, sender, trainer)
    trainer.finished("k", reason="it did not fit")


def quarantined(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    lent(driver, sender, trainer)
    trainer.detach()


def ready(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.stage("k")


def ready_then_reset(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.stage("k")
    sender.reset()


def ready_then_abandoned(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.stage("k")
    sender.abandon("k")


def filling(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.grant("k")


def filling_then_reset(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.grant("k")
    sender.reset()


def filling_then_abandoned(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.grant("k")
    sender.abandon("k")


def waiting(driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    for index in range(len(driver.slots)):
        sender.grant(f"other{index}")
    assert sender.offer("k") == []


def waiting_then_reset(driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    other = Sender(driver, "other")
    other.grant("k1", queue="elsewhere")
    other.grant("k2", queue="elsewhere")
    assert sender.offer("k") == []
    sender.reset()


def reserving(driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    assert sender.offer("k", nbytes=40_000) == []
    assert driver.growing


Way = Callable[[Driver, Sender, Trainer], None]


def too_large() -> bytes:
    roomy = msgspec.structs.replace(LIMITS, max_micro_batch_bytes=1 << 30)
    return manifest_of(LIMITS.max_micro_batch_bytes + 1, roomy)
