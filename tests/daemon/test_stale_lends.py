"""What becomes stale while a trainer has it, or while no daemon is there."""

from __future__ import annotations

import pytest

from forebay.wire import (
    Attached,
    Done,
    Gone,
    KeyGone,
    Lend,
    MicroBatchState,
    Reached,
    RefusalCode,
    Refused,
    Stale,
)

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer

AGE_S = 100.0


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2, max_versions_behind=2, max_age_s=AGE_S, fill_lease_s=1000.0, await_lease_s=1000.0)


# --- what is lent ---


def test_a_lend_tells_for_how_long_its_transfer_may_begin(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=30.0)
    sender.stage("b", expires_s=500.0)
    driver.pass_time(10.0)
    assert [lend.expires_s for lend in trainer.lends(2)] == [20.0, AGE_S - 10.0]


def test_without_an_end_a_lend_tells_of_none() -> None:
    driver = Driver()
    trainer = Trainer(driver)
    trainer.attach()
    Sender(driver).stage("a")
    assert only(trainer.want(1), Lend).expires_s is None


@pytest.mark.parametrize("why", ["expiry", "version"])
def test_a_lent_ones_trainer_is_told_once_and_its_answer_frees_the_slot(
    driver: Driver, sender: Sender, trainer: Trainer, why: str
) -> None:
    sender.stage("a", version=1, expires_s=5.0)
    sender.stage("b", version=4)
    assert driver.ready() == ("b",), "a is 3 behind"
    sender.reset()
    sender.stage("c", version=1, expires_s=5.0)
    (lend,) = trainer.lends(1)
    assert not sender.wait_for("c")
    if why == "expiry":
        driver.pass_time(5.0)
    else:
        sender.advance(4)
    stale = only(trainer.heard(), Stale)
    assert (stale.slot, stale.generation) == (lend.slot, lend.generation)
    assert driver.states().count("LENT") == 1, "the trainer reads it"
    if why == "expiry":
        driver.pass_time(1.0)
    else:
        sender.advance(5)
    assert trainer.heard() == []
    assert driver.states().count("LENT") == 1
    only(trainer.finished("c", lend=lend, reason=stale.reason, stale=True), Done)
    gone = only(sender.heard(), Gone)
    assert (gone.reason, gone.stale) == (stale.reason, True)
    assert driver.states() == ["FREE", "FREE"]
    count = "expired" if why == "expiry" else "version"
    before = 0 if why == "expiry" else 1
    assert driver.count(f"dropped_stale_{count}") == 1 + before
    (notice,) = trainer.want(1, "c")
    assert isinstance(notice, KeyGone)
    assert (notice.stale, notice.reason) == (True, stale.reason)


def test_what_is_on_the_device_is_trained_however_old(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a", version=1, expires_s=5.0)
    (lend,) = trainer.lends(1)
    only(trainer.promoted(lend), Done)
    driver.pass_time(1000.0)
    sender.advance(50)
    assert trainer.heard() == []
    only(trainer.finished("a"), Done)
    assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED


def test_a_transfer_that_had_begun_when_it_became_stale_counts(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=5.0)
    (lend,) = trainer.lends(1)
    driver.pass_time(5.0)
    only(trainer.heard(), Stale)
    only(trainer.promoted(lend), Done)
    assert driver.on_device() == ("a",)
    assert driver.count("dropped_stale_expired") == 0


def test_a_dead_trainers_stale_slots_are_dropped_and_not_lent_to_the_next(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", version=1)
    sender.stage("b", version=3)
    trainer.lends(2)
    sender.advance(4)
    trainer.die()
    assert driver.ready() == ("b",)
    heir = Trainer(driver, "holder2")
    heir.attach()
    assert [lend.key for lend in heir.lends(5)] == ["b"]


def test_a_detached_trainers_stale_slots_wait_until_nobody_reads_them(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=5.0)
    trainer.lends(1)
    trainer.detach()
    driver.pass_time(6.0)
    assert driver.states() == ["QUARANTINED", "FREE"]
    trainer.die()
    assert driver.states() == ["FREE", "FREE"]


def test_a_trainer_that_attaches_again_is_told_again(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a", expires_s=5.0)
    (lend,) = trainer.lends(1)
    driver.pass_time(5.0)
    only(trainer.heard(), Stale)
    attached, stale = trainer.attach(held=[(lend.slot, lend.generation)])
    assert isinstance(attached, Attached)
    assert isinstance(stale, Stale)
    attached, again, stale = trainer.attach()
    assert isinstance(again, Lend)
    assert again.expires_s == 0.0, "its transfer may not begin even if the notice is late"
    assert isinstance(stale, Stale)


# --- a restart ---


def test_a_restarted_daemon_knows_expiries_ages_and_what_versions_the_slots_tell(
    driver: Driver, sender: Sender
) -> None:
    sender.stage("a", version=3, expires_s=50.0)
    sender.stage("b", version=4, age_s=40.0)
    driver.restart()
    assert driver.ready() == ("a", "b")
    rows = [(row.policy_version, row.stale_in_s, row.offered_s) for row in driver.status().slots]
    assert rows == [(3, 50.0, 0.0), (4, 60.0, 40.0)]
    sender.say_hello()
    assert only(sender.offer("c", version=1), Refused).code is RefusalCode.STALE
    driver.pass_time(50.0)
    assert driver.ready() == ("b",)
    driver.pass_time(10.0)
    assert driver.ready() == ()


def test_what_became_stale_while_no_daemon_was_there_is_dropped_by_the_next(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=50.0)
    (lend,) = trainer.lends(1)
    sender.stage("b", expires_s=50.0)
    driver.now += 60.0
    driver.restart()
    assert driver.states() == ["LENT", "FREE"]
    assert driver.ledger.next_deadline() is None, "its trainer cannot be told yet"
    _, stale = trainer.attach(held=[(lend.slot, lend.generation)])
    assert isinstance(stale, Stale)
    sender.say_hello()
    assert only(sender.wait_for("b"), Gone).stale


def test_other_limits_after_a_restart_hold_for_what_was_staged_before(driver: Driver, sender: Sender) -> None:
    sender.stage("a", version=3)
    sender.stage("b", version=4)
    driver.settings = Driver(max_versions_behind=0).settings
    driver.restart()
    assert driver.ready() == ("b",)


def test_what_was_told_of_a_stale_one_is_told_by_the_next_daemon_too(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("lent", expires_s=5.0)
    (lent,) = trainer.lends(1)
    sender.stage("ready")
    assert not sender.offer("waits", wait_s=500.0, expires_s=5.0)
    driver.pass_time(5.0)
    refused = only(sender.heard(), Refused)
    trainer.finished("lent", lend=lent, reason="stale: said so", stale=True)
    driver.restart()
    sender.say_hello()
    repeat = only(sender.offer("waits", wait_s=500.0, expires_s=5.0), Refused)
    assert (repeat.code, repeat.words) == (RefusalCode.STALE, refused.words)
    gone = only(sender.wait_for("lent"), Gone)
    assert (gone.stale, gone.reason) == (True, "stale: said so")


def test_a_version_that_a_reset_forgot_does_not_come_back_with_what_was_lent_then(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", version=100)
    trainer.lends(1)
    sender.reset()
    driver.restart()
    sender.say_hello()
    sender.stage("b", version=3)
    assert driver.ready() == ("b",)


def test_one_that_was_told_stale_and_lent_anew_after_a_reset_is_told_again(driver: Driver, sender: Sender) -> None:
    trainer = Trainer(driver)
    trainer.attach()
    grant = sender.grant("a", version=1)
    sender.fill(grant)
    trainer.lends(1)
    sender.advance(9)
    only(trainer.heard(), Stale)
    driver.restart()
    trainer.die()
    sender.say_hello()
    heir = Trainer(driver, "holder2")
    heir.attach()
    assert [lend.key for lend in heir.lends(1)] == ["a"], "the slots tell of no version but its own"
    sender.advance(9)
    only(heir.heard(), Stale)
