"""An operator's orders: what comes in, what goes out, and what is to be forgotten."""

from __future__ import annotations

import pytest

from forebay.shm import SlotState
from forebay.wire import (
    Client,
    Drain,
    Forget,
    Forgotten,
    Granted,
    Lend,
    MicroBatchState,
    Order,
    Pause,
    RefusalCode,
    Refused,
    Resume,
    Right,
    Staged,
    Valves,
)

from .ledger_driver import INSPECTOR, Driver, only
from .ledger_peers import Sender, Trainer
from .test_rights import Guest, refused


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


def order(driver: Driver, what: Order) -> Valves:
    return only(driver.say(INSPECTOR, what), Valves)


def forget(driver: Driver, key: str, *, trained: bool = False) -> Forgotten | Refused:
    [answer] = driver.say(INSPECTOR, Forget(id=driver.new_id(), queue="train", key=key, trained=trained))
    assert isinstance(answer, Forgotten | Refused)
    return answer


# --- who may ---


@pytest.mark.parametrize("what", [Drain(), Pause(), Resume(), Forget(queue="secret-queue", key="secret-key-1")])
def test_only_who_may_operate_gives_orders(driver: Driver, what: Order) -> None:
    Sender(driver).stage("secret-key-1", queue="secret-queue")
    others = Client("g", frozenset(Right) - {Right.OPERATE})
    guest = Guest(driver, others)
    with driver.nothing_moves():
        assert "lacks the right 'operate'" in refused(guest.say(what)).words
    operator = Guest(driver, Client("o", frozenset({Right.OPERATE})), "operator")
    assert not isinstance(operator.say(what)[0], Refused)


# --- draining ---


def test_a_drained_daemon_takes_nothing_in_and_lends_what_it_has(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    filling = sender.grant("b")
    sender.offer("waits")
    assert order(driver, Drain()) == Valves(draining=True, all_paused=False, paused=())
    assert only(sender.heard(), Refused).code is RefusalCode.DRAINING
    refusal = only(sender.offer("c"), Refused)
    assert refusal.code is RefusalCode.DRAINING
    assert "forebay resume" in refusal.words
    sender.fill(filling)
    assert [lend.key for lend in trainer.lends(2)] == ["a", "b"]
    assert driver.status().draining
    assert not driver.status().stopping


def test_what_was_drained_takes_in_again_once_it_is_resumed(driver: Driver, sender: Sender) -> None:
    order(driver, Drain())
    only(sender.offer("a"), Refused)
    assert order(driver, Resume()) == Valves(draining=False, all_paused=False, paused=())
    only(sender.offer("a", "another"), Granted)


def test_no_order_keeps_a_daemon_that_stops(driver: Driver, sender: Sender) -> None:
    driver.perform(driver.ledger.drain(driver.now))
    assert order(driver, Resume()).draining
    assert only(sender.offer("a"), Refused).words == "the daemon is shutting down"


# --- pausing ---


def test_a_paused_queue_lends_nothing_and_takes_in_more(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    assert order(driver, Pause(queue="train")) == Valves(draining=False, all_paused=False, paused=("train",))
    sender.stage("a")
    assert trainer.want(5) == []
    assert trainer.want(5, "a") == []
    sender.stage("b")
    assert driver.ready() == ("a", "b")
    assert driver.status().queues[0].paused
    order(driver, Resume(queue="train"))
    assert [lend.key for lend in trainer.heard() if isinstance(lend, Lend)] == ["a", "b"]


def test_one_queue_is_paused_beside_others(driver: Driver, sender: Sender) -> None:
    trainers = {queue: Trainer(driver, queue, queue=queue) for queue in ("train", "eval")}
    order(driver, Pause(queue="train"))
    for queue, trainer in trainers.items():
        trainer.attach()
        sender.stage("k", queue=queue)
    assert trainers["train"].lends(1) == []
    assert [lend.key for lend in trainers["eval"].lends(1)] == ["k"]


def test_all_queues_are_paused_at_once_and_resumed_at_once(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    order(driver, Pause(queue="eval"))
    assert order(driver, Pause()) == Valves(draining=False, all_paused=True, paused=("eval",))
    sender.stage("a")
    assert trainer.lends(1) == []
    assert order(driver, Resume(queue="eval")) == Valves(draining=False, all_paused=True, paused=())
    assert order(driver, Resume()) == Valves(draining=False, all_paused=False, paused=())
    assert [lend.key for lend in trainer.heard() if isinstance(lend, Lend)] == ["a"]


def test_an_order_that_is_repeated_changes_nothing(driver: Driver) -> None:
    for what in (Pause(queue="train"), Drain()):
        first = order(driver, what)
        events = len(driver.logs)
        assert order(driver, what) == first
        assert len(driver.logs) == events


def test_what_a_paused_trainer_holds_is_its_own(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1)
    order(driver, Pause())
    trainer.promoted(lend)
    trainer.finished("a")
    assert driver.states() == ["FREE"] * 2


def test_only_so_many_queues_can_be_paused_by_name() -> None:
    driver = Driver(max_queues=2)
    for name in ("a", "b"):
        order(driver, Pause(queue=name))
    answer = only(driver.say(INSPECTOR, Pause(queue="c")), Refused)
    assert answer.code is RefusalCode.TOO_MANY
    answer = only(driver.say(INSPECTOR, Pause(queue="c" * 1000)), Refused)
    assert answer.code is RefusalCode.BAD_REQUEST


def test_where_no_more_queues_can_be_paused_a_repeat_and_an_order_for_all_still_can() -> None:
    driver = Driver(max_queues=2)
    for name in ("a", "b"):
        order(driver, Pause(queue=name))
    assert order(driver, Pause(queue="b")).paused == ("a", "b")
    assert order(driver, Pause()).all_paused
    order(driver, Resume(queue="a"))
    assert order(driver, Pause(queue="c")) == Valves(draining=False, all_paused=True, paused=("b", "c"))


# --- forgetting ---


def test_what_is_ready_is_dropped_and_its_key_is_new_again(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    answer = forget(driver, "k")
    assert isinstance(answer, Forgotten)
    assert answer.state is MicroBatchState.READY
    assert driver.states() == ["FREE"] * 2
    assert isinstance(forget(driver, "k"), Refused)
    sender.stage("k", "another")
    assert driver.ready() == ("k",)


def test_an_order_to_forget_whose_answer_was_lost_is_answered_again_and_hits_nothing_new(
    driver: Driver, sender: Sender
) -> None:
    sender.stage("k")
    what = Forget(id=77, queue="train", key="k")
    first = driver.say(INSPECTOR, what)
    sender.stage("k", "another")
    with driver.nothing_moves():
        assert driver.say(INSPECTOR, what) == first == [Forgotten(id=77, state=MicroBatchState.READY)]
    assert driver.ready() == ("k",)
    assert isinstance(forget(driver, "k"), Forgotten), "a new order is no repeat"
    assert driver.ready() == ()


def test_only_the_last_operators_repeats_are_known(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    driver.say(INSPECTOR, Forget(id=77, queue="train", key="k"))
    for number in range(64):
        sender.stage("k", f"another-{number}")
        guest = Guest(driver, Client("o", frozenset({Right.OPERATE})), f"operator-{number}")
        assert isinstance(only(guest.say(Forget(id=4, queue="train", key="k")), Forgotten), Forgotten)
    repeat = only(driver.say(INSPECTOR, Forget(id=77, queue="train", key="k")), Refused)
    assert repeat.code is RefusalCode.UNKNOWN_KEY


def test_whoever_still_sends_what_is_forgotten_is_told(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    forget(driver, "k")
    refusal = only(sender.heard(), Refused)
    assert (refusal.code, refusal.words) == (RefusalCode.DROPPED, "an operator had it forgotten")
    assert only(sender.offer("k"), Refused).code is RefusalCode.DROPPED, "that stage call is over for good"


@pytest.mark.parametrize("way", ["lent", "quarantined", "on_device"])
def test_what_a_trainer_has_is_not_forgotten(driver: Driver, sender: Sender, trainer: Trainer, way: str) -> None:
    sender.stage("k")
    [lend] = trainer.lends(1)
    if way == "quarantined":
        trainer.detach()
    elif way == "on_device":
        trainer.promoted(lend)
    with driver.nothing_moves():
        answer = forget(driver, "k", trained=True)
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.IN_USE


def test_a_trained_key_is_forgotten_only_by_who_says_so(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    [lend] = trainer.lends(1)
    trainer.promoted(lend)
    trainer.finished("k")
    with driver.nothing_moves():
        answer = forget(driver, "k")
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.CONSUMED
        assert only(sender.offer("k", "another"), Refused).code is RefusalCode.CONSUMED
    assert isinstance(forget(driver, "k", trained=True), Forgotten)
    only(sender.offer("k", "third"), Granted)


@pytest.mark.parametrize("trained", [True, False])
def test_the_next_daemon_has_forgotten_it_too(
    driver: Driver, sender: Sender, trainer: Trainer, *, trained: bool
) -> None:
    sender.stage("k")
    if trained:
        [lend] = trainer.lends(1)
        trainer.promoted(lend)
        trainer.finished("k")
    else:
        sender.reset()
    forget(driver, "k", trained=trained)
    driver.restart()
    sender.say_hello()
    assert isinstance(forget(driver, "k"), Refused), "there is nothing to forget"
    only(sender.offer("k", "another"), Granted)


def test_what_happens_to_a_key_after_it_was_forgotten_is_remembered(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    forget(driver, "k")
    sender.stage("k", "another")
    [lend] = trainer.lends(1)
    trainer.promoted(lend)
    trainer.finished("k")
    driver.restart()
    sender.say_hello()
    assert only(sender.offer("k", "another"), Staged).state is MicroBatchState.CONSUMED
    assert only(sender.offer("k", "third"), Refused).code is RefusalCode.CONSUMED
    assert all(slot.state is SlotState.FREE for slot in driver.slots)
