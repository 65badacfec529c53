"""A new daemon on the pool of a dead one: nothing that was complete is lost, nothing is trained twice."""

from __future__ import annotations

import pytest

from forebay.wire import (
    Attached,
    Done,
    Events,
    GetEvents,
    Granted,
    Lend,
    MicroBatchState,
    Reached,
    RefusalCode,
    Refused,
    Staged,
)

from .ledger_driver import INSPECTOR, Driver, only
from .ledger_peers import Sender, Trainer


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=4)


def test_ready_micro_batches_are_adopted_in_their_order(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b", "c"):
        sender.grant(key)
    for key in ("c", "a", "b"):
        sender.fill(only(sender.offer(key), Granted))
    driver.restart()
    assert driver.ready() == ("c", "a", "b")
    sender.say_hello()
    sender.stage("d")
    assert driver.ready() == ("c", "a", "b", "d")


def test_what_is_staged_after_a_restart_comes_after_all_that_was_adopted(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    for key in ("a", "b"):
        sender.abandon(key)
    driver.restart()
    sender.say_hello()
    sender.stage("d")
    assert driver.ready() == ("c", "d")


def test_what_was_filling_is_sent_again(driver: Driver, sender: Sender) -> None:
    old = sender.grant("a")
    driver.restart()
    assert driver.states() == ["FREE"] * 4
    sender.say_hello()
    new = only(sender.offer("a"), Granted)
    assert (new.missing, new.generation > old.generation) == (((0, 3),), True)
    sender.fill(new)


def test_a_daemon_that_restarts_asks_for_a_hello(driver: Driver, sender: Sender) -> None:
    epoch = sender.say_hello().epoch
    driver.restart()
    assert only(sender.offer("a"), Refused).code is RefusalCode.HELLO_FIRST
    assert sender.say_hello().epoch != epoch


def test_what_waited_for_a_restarted_daemon_pushes_no_moment_out_of_its_history() -> None:
    driver = Driver(slots=4, remembered_events=3)
    sender = Sender(driver)
    sender.stage("a")
    driver.restart()
    for _ in range(50):
        only(sender.wait_for("a"), Refused)
    events = only(driver.say(INSPECTOR, GetEvents(id=driver.new_id())), Events)
    assert [(moment.event, moment.key) for moment in events.moments] == [("adopt", "a")]
    assert driver.count("refused_hello_first") == 50


def test_five_repeats_of_an_attempt_across_a_restart_publish_it_once(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    for restart in (False, False, True, False, False):
        if restart:
            driver.restart()
            sender.say_hello()
        assert only(sender.offer("a"), Staged).state is MicroBatchState.READY
    only(trainer.attach(), Attached)
    assert [lend.key for lend in trainer.lends(5)] == ["a"]


@pytest.mark.parametrize("attempt", ["train/a/1", "another"])
def test_an_adopted_lent_slot_is_known_to_offers(
    driver: Driver, sender: Sender, trainer: Trainer, attempt: str
) -> None:
    sender.stage("a")
    trainer.lends(1)
    driver.restart()
    sender.say_hello()
    with driver.nothing_moves():
        answer = sender.offer("a", attempt)
    if attempt == "another":
        assert only(answer, Refused).code is RefusalCode.IN_USE
    else:
        assert only(answer, Staged).state is MicroBatchState.READY


def test_a_lent_slot_stays_with_its_living_holder(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    [lend] = trainer.lends(1)
    driver.restart()
    assert driver.watched == ["holder1"]
    assert driver.states() == ["LENT", "READY", "FREE", "FREE"]
    stranger = Trainer(driver, "holder2")
    assert only(stranger.attach(), Refused).code is RefusalCode.QUEUE_TAKEN
    only(trainer.attach(held=[(lend.slot, lend.generation)]), Attached)
    assert driver.watched == ["holder1"]
    only(trainer.promoted(lend), Done)
    assert driver.states() == ["FREE", "READY", "FREE", "FREE"]
    assert driver.on_device() == ("a",)


def test_a_lend_that_was_lost_with_the_daemon_is_sent_again(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.want(1)
    driver.restart()
    _, lend = trainer.attach()
    assert isinstance(lend, Lend)
    assert lend.key == "a"


def test_a_lent_slot_whose_holder_died_meanwhile_is_ready_in_its_old_place(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    trainer.lends(2)
    driver.restart()
    trainer.die()
    assert driver.ready() == ("a", "b", "c")
    assert driver.forgotten == ["holder1"]
    following = Trainer(driver, "holder2")
    only(following.attach(), Attached)
    assert [lend.key for lend in following.lends(3)] == ["a", "b", "c"]


def test_a_quarantined_slot_waits_for_its_holders_lock(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    trainer.lends(1)
    trainer.detach()
    driver.restart()
    assert driver.states() == ["QUARANTINED", "READY", "FREE", "FREE"]
    assert driver.ready() == ("b",)
    trainer.die()
    assert driver.ready() == ("a", "b")


def test_a_quarantined_slot_is_its_holders_again_when_that_attaches(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1)
    trainer.detach()
    driver.restart()
    only(trainer.attach(held=[(lend.slot, lend.generation)]), Attached)
    only(trainer.promoted(lend), Done)
    assert driver.states() == ["FREE"] * 4


def test_two_queues_are_adopted_apart(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    other = Trainer(driver, "holder2", queue="eval")
    other.attach()
    sender.stage("a")
    sender.stage("a", queue="eval")
    trainer.lends(1)
    other.lends(1)
    driver.restart()
    other.die()
    assert (driver.ready(), driver.ready("eval")) == ((), ("a",))
    assert driver.watched == ["holder1"]


# --- what only the trainer still knows: its place in the journal was needed since ---


def restart_with_a_on_the_device(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    driver.forget_journal()
    driver.restart()
    sender.say_hello()


def test_a_key_on_the_device_is_learned_so_that_a_repeat_is_not_staged_again(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    only(trainer.attach(on_device=[("a", "train/a/1")]), Attached)
    assert driver.on_device() == ("a",)
    with driver.nothing_moves():
        assert only(sender.offer("a"), Staged).state is MicroBatchState.ON_DEVICE
        assert only(sender.offer("a", "another"), Refused).code is RefusalCode.IN_USE
    assert sender.wait_for("a") == []
    trainer.finished("a")
    assert only(sender.heard(), Reached).state is MicroBatchState.CONSUMED


def test_a_learned_key_is_lost_with_its_trainer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    trainer.attach(on_device=[("a", "train/a/1")])
    trainer.die()
    assert only(sender.offer("a"), Staged).state is MicroBatchState.LOST


def test_learning_a_key_twice_changes_nothing(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    trainer.attach(on_device=[("a", "train/a/1")])
    with driver.nothing_moves():
        trainer.attach(on_device=[("a", "train/a/1")])
    trainer.finished("a")
    with driver.nothing_moves():
        trainer.attach(on_device=[("a", "train/a/1")])
    assert driver.on_device() == ()


@pytest.mark.parametrize("is_growing", [False, True])
def test_an_attempt_that_was_repeated_before_its_trainer_came_back_is_not_trained_twice(
    driver: Driver, sender: Sender, trainer: Trainer, is_growing: bool
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    sender.offer("a", nbytes=40_000 if is_growing else 600)
    only(trainer.attach(on_device=[("a", "train/a/1")]), Attached)
    assert only(sender.heard(), Staged).state is MicroBatchState.ON_DEVICE
    assert driver.states() == ["FREE"] * 4
    assert driver.on_device() == ("a",)
    trainer.finished("a")
    assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED


def test_another_attempt_that_came_before_the_trainer_is_refused_when_it_does(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    sender.grant("a", "another")
    only(trainer.attach(on_device=[("a", "train/a/1")]), Attached)
    assert only(sender.heard(), Refused).code is RefusalCode.IN_USE
    assert (driver.states(), driver.on_device()) == (["FREE"] * 4, ("a",))


def test_an_attempt_that_waits_for_a_slot_when_its_trainer_comes_back_is_told_staged(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    other = Sender(driver, "other")
    for index in range(4):
        other.grant(f"x{index}")
    assert sender.offer("a") == []
    trainer.attach(on_device=[("a", "train/a/1")])
    assert only(sender.heard(), Staged).state is MicroBatchState.ON_DEVICE
    assert driver.status().waiting_offers == 0


def test_the_slot_of_a_repeat_that_was_needless_goes_to_whoever_waits(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    for key in ("a", "x", "y", "z"):
        sender.grant(key)
    waiter = Sender(driver, "waiter")
    assert waiter.offer("w") == []
    trainer.attach(on_device=[("a", "train/a/1")])
    assert only(waiter.heard(), Granted).slot == 0


def test_a_repeat_that_was_complete_before_its_trainer_came_back_is_not_trained_twice(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    for key in ("a", "b"):
        sender.stage(key)
    only(trainer.attach(on_device=[("a", "train/a/1")]), Attached)
    assert (driver.ready(), driver.on_device()) == (("b",), ("a",))
    assert [lend.key for lend in trainer.lends(5)] == ["b"]
    assert only(sender.offer("a"), Staged).state is MicroBatchState.ON_DEVICE


@pytest.mark.parametrize("stage", ["unknown", "waiting", "filling", "ready"])
def test_what_was_consumed_while_no_daemon_ran_is_consumed_for_the_next_one(
    driver: Driver, sender: Sender, trainer: Trainer, stage: str
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    other = Sender(driver, "other")
    if stage == "waiting":
        for index in range(4):
            other.grant(f"x{index}")
        assert sender.offer("a") == []
    elif stage == "filling":
        sender.grant("a")
    elif stage == "ready":
        sender.stage("a")
    only(trainer.attach(), Attached)
    only(trainer.finished("a", attempt="train/a/1"), Done)
    if stage in ("waiting", "filling"):
        only(sender.heard(), Staged)
    other.reset()
    assert driver.states() == ["FREE"] * 4
    with driver.nothing_moves():
        assert only(sender.offer("a"), Staged).state is MicroBatchState.CONSUMED
        assert only(sender.offer("a", "another"), Refused).code is RefusalCode.CONSUMED
        assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED
        only(trainer.finished("a", attempt="train/a/1"), Done)


def test_what_was_given_up_while_no_daemon_ran_may_be_staged_again(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    restart_with_a_on_the_device(driver, sender, trainer)
    only(trainer.attach(), Attached)
    only(trainer.finished("a", attempt="train/a/1", reason="it did not fit"), Done)
    sender.stage("a")
    assert driver.ready() == ("a",)


def test_a_promotion_whose_confirmation_was_lost_with_the_daemon_is_carried_out_once(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1)
    driver.restart()
    trainer.attach(held=[(lend.slot, lend.generation)], on_device=[("a", "train/a/1")])
    assert (driver.states()[0], driver.on_device()) == ("LENT", ()), "the transfer may be under way"
    trainer.promoted(lend)
    assert (driver.states()[0], driver.on_device()) == ("FREE", ("a",))


def test_an_adopted_slot_is_reset_and_replaced_like_any_other(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    driver.restart()
    sender.say_hello()
    sender.stage("a", "another")
    assert driver.ready() == ("a", "b")
    sender.reset()
    assert driver.states() == ["FREE"] * 4
