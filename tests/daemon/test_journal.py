"""What a daemon recorded of outcomes holds for the next one: nothing is trained twice, or lost in silence."""

from __future__ import annotations

import dataclasses

import pytest

from forebay.daemon.actions import WriteOutcome, WriteState
from forebay.shm import SlotState
from forebay.wire import Done, Gone, Granted, MicroBatchState, Reached, RefusalCode, Refused, Staged

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


def restart(driver: Driver, sender: Sender) -> None:
    driver.restart()
    sender.say_hello()


def train(sender: Sender, trainer: Trainer, key: str, credit_total: int = 1) -> None:
    sender.stage(key)
    only(trainer.promoted(trainer.lends(credit_total)[0]), Done)
    only(trainer.finished(key), Done)


def test_a_key_that_was_consumed_is_consumed_for_every_later_daemon(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    train(sender, trainer, "a")
    for _ in range(3):
        restart(driver, sender)
        with driver.nothing_moves():
            assert only(sender.offer("a"), Staged).state is MicroBatchState.CONSUMED
            assert only(sender.offer("a", "another"), Refused).code is RefusalCode.CONSUMED
            assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED


def test_what_was_on_the_device_of_a_trainer_that_lives_is_still_there(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    restart(driver, sender)
    assert driver.on_device() == ("a",)
    assert driver.watched == ["holder1"]
    with driver.nothing_moves():
        # Before the trainer has come back.
        assert only(sender.offer("a"), Staged).state is MicroBatchState.ON_DEVICE
        assert only(sender.offer("a", "another"), Refused).code is RefusalCode.IN_USE
    trainer.attach(on_device=[("a", "train/a/1")])
    assert driver.on_device() == ("a",)
    only(trainer.finished("a"), Done)
    assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED


def test_what_was_on_the_device_of_a_trainer_that_died_with_the_daemon_is_lost_by_name(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    restart(driver, sender)
    assert sender.wait_for("a") == []
    trainer.die()
    gone = only(sender.heard(), Gone)
    assert (gone.state, driver.on_device()) == (MicroBatchState.LOST, ())
    assert "died before it was finished" in gone.reason
    restart(driver, sender)
    assert driver.watched == []
    assert only(sender.offer("a"), Staged).state is MicroBatchState.LOST


def test_what_was_reset_while_the_trainer_held_it_is_dropped_when_it_comes_back_to_the_next_daemon(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.lends(1)
    sender.reset()
    restart(driver, sender)
    assert driver.states() == ["LENT", "FREE"]
    trainer.die()
    assert driver.states() == ["FREE", "FREE"]
    assert only(sender.wait_for("a"), Gone).reason == "the queue was reset"


def test_a_key_that_is_staged_anew_after_a_reset_is_not_taken_for_the_one_that_was_reset(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.lends(1)
    sender.reset()
    trainer.die()
    following = Trainer(driver, "holder2")
    following.attach()
    sender.stage("a", "another")
    following.lends(1)
    restart(driver, sender)
    following.die()
    assert driver.ready() == ("a",)


def test_an_attempt_that_another_replaced_stays_replaced(driver: Driver, sender: Sender) -> None:
    sender.grant("a")
    newer = Sender(driver, "newer")
    newer.stage("a", "another")
    restart(driver, sender)
    with driver.nothing_moves():
        assert only(sender.offer("a"), Refused).code is RefusalCode.REPLACED
        assert only(sender.offer("a", "another"), Staged).state is MicroBatchState.READY


def test_an_attempt_that_was_refused_for_want_of_a_slot_may_find_one_at_the_next_daemon(
    driver: Driver, sender: Sender
) -> None:
    for key in ("a", "b"):
        sender.grant(key)
    assert only(sender.offer("c", wait_s=0), Refused).code is RefusalCode.NO_SLOT
    restart(driver, sender)
    only(sender.offer("c"), Granted)


def test_an_attempt_whose_sender_fell_silent_may_go_on_with_the_next_daemon(
    driver: Driver, sender: Sender
) -> None:
    sender.grant("a")
    driver.pass_time(100.0)
    restart(driver, sender)
    sender.fill(only(sender.offer("a"), Granted))
    restart(driver, sender)
    assert driver.ready() == ("a",)


@pytest.mark.parametrize("how", ["reset", "abandoned", "given up"])
def test_what_was_dropped_stays_dropped_and_its_key_may_be_used_again(
    driver: Driver, sender: Sender, trainer: Trainer, how: str
) -> None:
    sender.stage("a")
    if how == "reset":
        sender.reset()
    elif how == "abandoned":
        sender.abandon("a")
    else:
        [lend] = trainer.lends(1)
        trainer.finished("a", lend=lend, reason="it did not fit")
    restart(driver, sender)
    with driver.nothing_moves():
        assert only(sender.offer("a"), Staged).state is MicroBatchState.DROPPED
    sender.stage("a", "another")
    restart(driver, sender)
    assert driver.ready() == ("a",)


@pytest.mark.parametrize("event", ["promoted", "finished", "reset", "replaced"])
def test_a_daemon_that_is_killed_between_record_and_slot_frees_the_slot_at_the_next_start(
    driver: Driver, sender: Sender, trainer: Trainer, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1) if event in ("promoted", "finished") else [None]
    order: list[type] = []
    perform = Driver._perform

    def perform_until_killed(self: Driver, action: object) -> None:
        order.append(type(action))
        if WriteState not in order:
            perform(self, action)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_perform", perform_until_killed)
        patch.setattr(Driver, "perform", lambda self, actions: [self._perform(action) for action in actions])
        match event:
            case "promoted":
                assert lend is not None
                trainer.promoted(lend)
            case "finished":
                assert lend is not None
                trainer.finished("a", lend=lend)
            case "reset":
                sender.reset()
            case _:
                sender.offer("a", "another")
    assert order.index(WriteOutcome) < order.index(WriteState)
    assert driver.headers[0].state is not SlotState.FREE
    restart(driver, sender)
    assert driver.states() == ["FREE", "FREE"]
    assert driver.ready() == ()
    assert driver.on_device() == (("a",) if event == "promoted" else ())
    answer = sender.offer("a")
    if event == "replaced":
        assert only(answer, Refused).code is RefusalCode.REPLACED
    else:
        ends = {"promoted": "on_device", "finished": "consumed", "reset": "dropped"}
        assert only(answer, Staged).state == ends[event]


def test_a_ready_slot_of_a_key_that_was_trained_by_another_way_is_freed_at_the_next_start(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    before = dataclasses.replace(driver.headers[0])
    only(trainer.finished("a", attempt="inline"), Done)
    # The kill came before the header was written.
    driver.headers[0] = before
    restart(driver, sender)
    assert driver.states() == ["FREE", "FREE"]
    assert only(sender.offer("a", "another"), Refused).code is RefusalCode.CONSUMED


def test_the_outcomes_of_the_last_keys_are_remembered_and_no_more() -> None:
    driver = Driver(slots=2, remembered_keys=2)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    for credit_total, key in enumerate(("a", "b", "c"), start=1):
        train(sender, trainer, key, credit_total)
    restart(driver, sender)
    assert only(sender.offer("c"), Staged).state is MicroBatchState.CONSUMED
    assert only(sender.offer("b"), Staged).state is MicroBatchState.CONSUMED
    only(sender.offer("a"), Granted)


@pytest.mark.parametrize("key", ["", "k" * 65])
@pytest.mark.parametrize("attempt", ["", "a" * 65])
def test_names_that_the_journal_has_no_room_for_are_refused_from_a_trainer_too(
    driver: Driver, trainer: Trainer, key: str, attempt: str
) -> None:
    with driver.nothing_moves():
        assert only(trainer.finished(key, attempt=attempt), Refused).code is RefusalCode.BAD_REQUEST
        assert only(trainer.attach(on_device=[(key, attempt)]), Refused).code is RefusalCode.BAD_REQUEST
    assert driver.journal == []


def test_a_key_that_was_trained_is_remembered_however_much_is_replaced_and_reset_meanwhile() -> None:
    driver = Driver(slots=2, remembered_keys=3)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    train(sender, trainer, "a")
    other = Trainer(driver, "holder2", queue="eval")
    other.attach()
    sender.stage("held", queue="eval")
    other.lends(1)
    for number in range(25):
        sender.reset("eval")
        sender.offer("b", f"attempt{number}", nbytes=100)
        sender.heard()
    for _ in range(2):
        assert only(sender.offer("a", "another"), Refused).code is RefusalCode.CONSUMED
        restart(driver, sender)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("end", ["given up", "died"])
def test_a_key_that_was_trained_inline_while_its_slot_was_being_lent_is_never_trained_again(
    driver: Driver, sender: Sender, trainer: Trainer, end: str, is_restarted: bool
) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1)
    # The trainer has not seen the lend yet.
    only(trainer.finished("a"), Done)
    assert driver.states() == ["LENT", "FREE"], "it may be read"
    assert sender.wait_for("a") == []
    if is_restarted:
        restart(driver, sender)
        trainer.attach(held=[(lend.slot, lend.generation)])
        sender.wait_for("a")
    if end == "given up":
        only(trainer.finished("a", attempt="train/a/1", lend=lend, reason="it was trained here"), Done)
    else:
        trainer.die()
    assert driver.states() == ["FREE", "FREE"]
    assert only(sender.heard(), Reached).state is MicroBatchState.CONSUMED
    restart(driver, sender)
    assert only(sender.offer("a", "another"), Refused).code is RefusalCode.CONSUMED
