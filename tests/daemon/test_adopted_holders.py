"""Two holders found at one queue, as a daemon leaves them that could not read the slot of one: no slot is lost."""

from __future__ import annotations

import pytest

from forebay.wire import Attached, Done, Gone, Lend, MicroBatchState, Peer, RefusalCode, Refused, Stale

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer

EITHER = [("holder1", "holder2"), ("holder2", "holder1")]


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2, max_versions_behind=1)


@pytest.fixture
def lends(driver: Driver, sender: Sender, trainer: Trainer) -> dict[str, Lend]:
    """What each holder holds after the restart: the first has a, the second b."""
    sender.stage("a", version=5)
    sender.stage("b", version=5)
    a, b = trainer.lends(2)
    driver.headers[b.slot].holder = "holder2"
    driver.restart()
    sender.say_hello()
    return {"holder1": a, "holder2": b}


def attach(trainer: Trainer, lend: Lend) -> None:
    """Attaches a trainer that knows of its slot, and hears of no other."""
    only(trainer.attach(held=[(lend.slot, lend.generation)]), Attached)


def train(trainer: Trainer, lend: Lend) -> None:
    only(trainer.promoted(lend), Done)
    only(trainer.finished(lend.key, released=lend), Done)


@pytest.mark.parametrize(("first", "second"), EITHER)
def test_of_two_holders_the_first_to_attach_has_the_queue_and_the_other_keeps_its_slot(
    driver: Driver, lends: dict[str, Lend], first: str, second: str
) -> None:
    trainer, other, third = (Trainer(driver, holder) for holder in (first, second, "holder3"))
    assert driver.watched == ["holder1", "holder2"]
    attach(trainer, lends[first])
    with driver.nothing_moves():
        for late in (other, third):
            assert only(late.attach(), Refused).code is RefusalCode.QUEUE_TAKEN
        assert trainer.want(2) == []
    train(trainer, lends[first])
    assert driver.status().slots[lends[second].slot].state == "LENT"


@pytest.mark.parametrize(("first", "second"), EITHER)
def test_what_the_other_of_two_holders_had_is_lent_to_who_waits_once_its_lock_is_free(
    driver: Driver, lends: dict[str, Lend], first: str, second: str
) -> None:
    trainer = Trainer(driver, first)
    attach(trainer, lends[first])
    assert trainer.want(1) == []
    driver.lock_is_free(second)
    lend = only(trainer.heard(), Lend)
    assert (lend.slot, lend.key) == (lends[second].slot, lends[second].key)
    train(trainer, lends[first])
    train(trainer, lend)
    assert driver.states() == ["FREE", "FREE"]
    assert driver.count("finished_consumed") == 2


@pytest.mark.parametrize(("dead", "alive"), EITHER)
def test_of_two_holders_the_death_of_one_takes_nothing_from_the_other(
    driver: Driver, lends: dict[str, Lend], dead: str, alive: str
) -> None:
    driver.lock_is_free(dead)
    assert driver.ready() == (lends[dead].key,)
    with driver.nothing_moves():
        third = Trainer(driver, "holder3")
        assert only(third.attach(), Refused).code is RefusalCode.QUEUE_TAKEN
    trainer = Trainer(driver, alive)
    attach(trainer, lends[alive])
    assert driver.watched == [alive]
    train(trainer, lends[alive])
    [lend] = trainer.lends(1)
    assert lend.key == lends[dead].key


@pytest.mark.parametrize(("first", "second"), EITHER)
def test_when_both_of_two_holders_are_dead_their_slots_are_ready_in_their_old_order(
    driver: Driver, lends: dict[str, Lend], first: str, second: str
) -> None:
    for holder in (first, second):
        driver.lock_is_free(holder)
    assert driver.ready() == tuple(lend.key for lend in lends.values()) == ("a", "b")
    only(Trainer(driver, "holder3").attach(), Attached)


def test_of_two_holders_each_is_shown_with_its_slot(driver: Driver, lends: dict[str, Lend]) -> None:
    attach(Trainer(driver, "holder2"), lends["holder2"])
    names = {slot.key: slot.holder.name for slot in driver.status().slots if slot.holder is not None}
    assert names == {"a": "a trainer from before the restart", "b": "trainer-holder2"}


def test_a_holder_of_which_nothing_is_known_is_told_without_a_pid(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    driver.restart()
    refused = only(Trainer(driver, "holder2").attach(), Refused)
    assert "has a live trainer: a trainer from before the restart, not back since" in refused.words
    driver.lock_is_free("holder1")
    sender.say_hello()
    lost = only(sender.wait_for("a", MicroBatchState.CONSUMED), Gone)
    assert lost.reason == "its trainer, a trainer from before the restart, died before it was finished"


def test_a_holder_is_shown_as_its_lock_names_it_until_it_attaches(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    sender.stage("b")
    a, b = trainer.lends(2)
    trainer.promoted(b)
    driver.notes["holder1"] = Peer(name="noted", pid=42, host="gpu")
    driver.restart()
    queue = driver.status().queues[0]
    assert (queue.trainer, queue.trainer_is_back) == (driver.notes["holder1"], False)
    assert driver.status().slots[a.slot].holder == driver.notes["holder1"]
    with driver.nothing_moves():
        refused = only(Trainer(driver, "holder2").attach(), Refused)
    assert "has a live trainer: noted pid 42 on gpu, not back since the daemon started" in refused.words
    attach(trainer, a)
    queue = driver.status().queues[0]
    assert queue.trainer is not None
    assert (queue.trainer.name, queue.trainer_is_back) == ("trainer-holder1", True)


def test_what_a_holder_had_on_its_device_is_lost_by_the_name_in_its_lock(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    driver.notes["holder1"] = Peer(name="noted", pid=42, host="gpu")
    driver.restart()
    driver.lock_is_free("holder1")
    sender.say_hello()
    lost = only(sender.wait_for("a", MicroBatchState.CONSUMED), Gone)
    assert (lost.state, "its trainer, noted pid 42 on gpu, died" in lost.reason) == (MicroBatchState.LOST, True)


def test_a_trainer_is_not_told_that_the_slot_of_another_holder_is_stale(
    driver: Driver, sender: Sender, lends: dict[str, Lend]
) -> None:
    trainer = Trainer(driver, "holder1")
    attach(trainer, lends["holder1"])
    sender.advance(9)
    assert only(trainer.heard(), Stale).slot == lends["holder1"].slot
