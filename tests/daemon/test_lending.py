"""What a trainer is lent, in which order, and what it gives back."""

from __future__ import annotations

import pytest

from forebay.wire import Attached, Done, KeyGone, Lend, MicroBatchState, Reached

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=4)


@pytest.fixture
def trainer(driver: Driver) -> Trainer:
    trainer = Trainer(driver)
    only(trainer.attach(), Attached)
    return trainer


def keys(messages: list[Lend]) -> list[str]:
    return [message.key for message in messages]


# --- demand ---


def test_a_trainer_is_lent_no_more_than_it_allows(sender: Sender, trainer: Trainer) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    assert keys(trainer.lends(1)) == ["a"]
    assert keys(trainer.lends(3)) == ["b", "c"]


def test_a_repeated_demand_lends_nothing_more(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    assert keys(trainer.lends(2)) == ["a", "b"]
    with driver.nothing_moves():
        for total in (2, 2, 1, 0, -5):
            assert trainer.lends(total) == []


def test_demand_is_met_when_something_is_published(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    assert trainer.lends(2) == []
    sender.stage("a")
    sender.stage("b")
    sender.stage("c")
    heard = [message for message in trainer.heard() if isinstance(message, Lend)]
    assert keys(heard) == ["a", "b"]
    assert driver.ready() == ("c",)


def test_a_wanted_key_comes_out_of_order_and_the_others_keep_theirs(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    [lend] = trainer.lends(0, "b")
    assert (lend.key, lend.on_credit) == ("b", False)
    assert driver.ready() == ("a", "c")
    assert keys(trainer.lends(2)) == ["a", "c"]


def test_a_wanted_key_is_lent_when_it_is_published(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    assert trainer.lends(0, "b") == []
    sender.stage("a")
    sender.stage("b")
    assert keys([message for message in trainer.heard() if isinstance(message, Lend)]) == ["b"]
    assert driver.ready() == ("a",)


def test_a_key_that_is_wanted_no_more_is_not_lent(sender: Sender, trainer: Trainer) -> None:
    trainer.want(0, "a")
    trainer.want(0)
    sender.stage("a")
    assert trainer.heard() == []


def test_a_wanted_key_uses_no_credit(sender: Sender, trainer: Trainer) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    lends = trainer.lends(1, "c")
    assert [(lend.key, lend.on_credit) for lend in lends] == [("c", False), ("a", True)]


def test_a_wanted_key_that_will_never_come_is_told_gone(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    for key in ("trained", "given up", "reset"):
        sender.stage(key)
    trained, given_up = trainer.lends(2)
    trainer.promoted(trained)
    trainer.finished("trained")
    trainer.finished("given up", lend=given_up, reason="it did not fit")
    sender.reset()
    with driver.nothing_moves():
        messages = trainer.want(0, "trained", "given up", "reset", "unknown")
    gone = {message.key: (message.state, message.reason) for message in messages if isinstance(message, KeyGone)}
    assert len(messages) == 3
    assert gone["trained"] == (MicroBatchState.CONSUMED, "it was trained already")
    assert gone["given up"] == (MicroBatchState.DROPPED, "it did not fit")
    assert gone["reset"] == (MicroBatchState.DROPPED, "the queue was reset")


def test_a_key_that_was_lost_and_is_staged_anew_is_lent_to_who_waits_for_it(
    sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    sender.reset()
    only(trainer.want(0, "a"), KeyGone)
    sender.stage("a", "another")
    assert only(trainer.heard(), Lend).key == "a"


# --- giving back ---


def test_a_repeated_promoted_is_confirmed_counted_and_releases_nothing_twice(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1)
    only(trainer.promoted(lend), Done)
    sender.stage("b")
    assert driver.states()[lend.slot] == "READY", "the slot is in use again"
    with driver.nothing_moves():
        for _ in range(3):
            only(trainer.promoted(lend), Done)
    assert driver.count("late_releases") == 3


def test_a_promoted_of_an_old_generation_releases_nothing(driver: Driver) -> None:
    driver = Driver(slots=1)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    sender.stage("a")
    [old] = trainer.lends(1)
    trainer.promoted(old)
    sender.stage("b")
    [new] = trainer.lends(2)
    assert (new.slot, new.generation) == (old.slot, old.generation + 1)
    with driver.nothing_moves():
        only(trainer.promoted(old), Done)
        only(trainer.finished("unknown", lend=old), Done)
    assert driver.states() == ["LENT"]
    assert driver.count("late_releases") == 2


@pytest.mark.parametrize("slot", [-2, 4, 1 << 40])
def test_a_promoted_of_a_slot_that_is_none_releases_nothing(
    driver: Driver, sender: Sender, trainer: Trainer, slot: int
) -> None:
    sender.stage("a")
    trainer.lends(1)
    with driver.nothing_moves():
        lend = Lend(slot=slot, generation=1, key="a", file_bytes=1, on_credit=True)
        only(trainer.promoted(lend), Done)
        only(trainer.finished("b", lend=lend), Done)


def test_a_slot_cannot_be_released_by_the_trainer_of_another_queue(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    other = Trainer(driver, "holder2", queue="eval")
    other.attach()
    sender.stage("a")
    [lend] = trainer.lends(1)
    with driver.nothing_moves():
        only(other.promoted(lend), Done)
        only(other.finished("a", lend=lend), Done)


def test_a_consumed_key_is_finished_once_however_often_that_is_said(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    only(trainer.finished("a"), Done)
    with driver.nothing_moves():
        for reason in ("", "", "a late reason"):
            only(trainer.finished("a", reason=reason), Done)
    assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED
    assert driver.count("finished_consumed") == 1


def test_a_slot_may_be_finished_without_having_been_promoted(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1)
    only(trainer.finished("a", lend=lend), Done)
    assert driver.states() == ["FREE"] * 4
    assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED


@pytest.mark.parametrize("reason", ["", "it did not fit"])
def test_an_end_whose_release_was_lost_is_confirmed_only_once_both_are_said_again(
    driver: Driver, sender: Sender, trainer: Trainer, reason: str
) -> None:
    sender.stage("a", attempt="one")
    [lend] = trainer.lends(1)
    with driver.nothing_moves():
        assert trainer.finished("a", attempt="one", released=lend, reason=reason) == []
    only(trainer.promoted(lend), Done)
    only(trainer.finished("a", attempt="one", released=lend, reason=reason), Done)
    assert driver.states() == ["FREE"] * 4
    assert driver.on_device() == ()
    assert driver.count(f"finished_{'dropped' if reason else 'consumed'}") == 1


def test_the_end_of_what_came_by_another_pool_is_confirmed_while_the_same_attempt_is_lent_here(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", attempt="one")
    trainer.lends(1)
    with driver.nothing_moves():
        only(trainer.finished("a", attempt="one", reason="its pool is gone"), Done)
    assert driver.states().count("LENT") == 1


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_micro_batch_that_the_trainer_gives_up_is_dropped_with_its_reason(
    driver: Driver, sender: Sender, trainer: Trainer, is_promoted: bool
) -> None:
    sender.stage("a")
    waiting = sender.wait_for("a")
    assert waiting == []
    [lend] = trainer.lends(1)
    if is_promoted:
        trainer.promoted(lend)
    trainer.finished("a", lend=None if is_promoted else lend, reason="leaf ['x'] would be narrowed")
    [gone] = sender.heard()
    assert "leaf ['x'] would be narrowed" in str(gone)
    assert driver.states() == ["FREE"] * 4
    assert driver.on_device() == ()
