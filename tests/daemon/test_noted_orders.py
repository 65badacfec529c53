"""Who ordered what, what was refused before it got in, and what a status tells of those who are waited for."""

from __future__ import annotations

import pytest

from forebay.wire import (
    Client,
    Drain,
    Events,
    Forget,
    GetEvents,
    Moment,
    Offer,
    Order,
    Pause,
    RefusalCode,
    Refused,
    Reset,
    Resume,
    Right,
)

from .ledger_driver import INSPECTOR, LIMITS, Driver, only
from .ledger_peers import Sender, Trainer, manifest_of
from .test_rights import Guest, refused


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


def moments(driver: Driver, event: str) -> list[Moment]:
    answer = only(driver.say(INSPECTOR, GetEvents(id=driver.new_id())), Events)
    return [moment for moment in answer.moments if moment.event == event]


@pytest.mark.parametrize(
    "order", [Drain(), Pause(queue="train"), Forget(queue="train", key="k"), Reset(queue="train")], ids=str
)
def test_an_order_is_noted_with_who_gave_it(driver: Driver, sender: Sender, order: Order | Reset) -> None:
    sender.stage("k")
    sender.say(order)
    (noted,) = moments(driver, type(order).__name__.lower())
    assert noted.who == "orchestrator pid 7 on there"
    assert noted.queue in ("train", "")


def test_a_resumption_is_noted_with_who_ordered_it(driver: Driver, sender: Sender) -> None:
    sender.say(Pause())
    sender.say(Resume())
    (noted,) = moments(driver, "resume")
    assert noted.who == "orchestrator pid 7 on there"


def test_a_reset_is_noted_with_how_many_it_dropped(driver: Driver, sender: Sender) -> None:
    sender.stage("a")
    sender.stage("b")
    sender.reset()
    (noted,) = moments(driver, "reset")
    assert (noted.queue, noted.words) == ("train", "dropped=2")


def test_no_name_is_kept_that_is_longer_than_names_may_be(driver: Driver, sender: Sender) -> None:
    long = "x" * (LIMITS.max_key_bytes + 1)
    sender.reset(long)
    sender.offer(long)
    sender.offer("k", queue=long)
    sender.say(Drain())
    sender.offer(long)
    stager = Guest(driver, Client("g", frozenset({Right.INSPECT})))
    stager.say(offer_of(long))
    answer = only(driver.say(INSPECTOR, GetEvents(id=driver.new_id())), Events)
    assert len([moment for moment in answer.moments if moment.event == "refuse"]) == 4
    assert all(len(moment.key) <= LIMITS.max_key_bytes for moment in answer.moments)
    assert all(len(moment.queue) <= LIMITS.max_key_bytes for moment in answer.moments)


def offer_of(key: str) -> Offer:
    return Offer(queue="train", key=key, attempt="a", manifest=manifest_of(600), wait_s=1.0)


def test_an_offer_that_its_client_has_no_right_to_is_part_of_the_keys_story(driver: Driver) -> None:
    guest = Guest(driver, Client("g", frozenset({Right.INSPECT})))
    with driver.nothing_moves():
        assert refused(guest.say(offer_of("k"))).code is RefusalCode.NOT_ALLOWED
    (noted,) = moments(driver, "refuse")
    assert (noted.queue, noted.key) == ("train", "k")
    assert noted.words.startswith("code=not_allowed ")


def test_a_repeat_of_an_open_question_does_not_make_it_last_longer(driver: Driver) -> None:
    question = GetEvents(id=77, after=-1)
    last = only(driver.say(INSPECTOR, question), Events).last
    question = GetEvents(id=78, after=last, follow_s=5)
    for _ in range(4):
        assert driver.say(INSPECTOR, question) == []
        driver.pass_time(1.2)
    driver.pass_time(0.3)
    assert only(driver.heard(INSPECTOR), Events).moments == ()


def test_another_question_of_the_same_peer_takes_the_place_of_the_open_one(driver: Driver, sender: Sender) -> None:
    last = only(driver.say(INSPECTOR, GetEvents(id=77, after=-1)), Events).last
    driver.say(INSPECTOR, GetEvents(id=78, after=last, follow_s=5, key="a"))
    driver.say(INSPECTOR, GetEvents(id=79, after=last, follow_s=20, key="b"))
    sender.stage("a")
    driver.pass_time(6)
    assert driver.heard(INSPECTOR) == []
    sender.stage("b")
    driver.pass_time(1)
    assert only(driver.heard(INSPECTOR), Events).id == 79


def test_a_status_tells_when_a_silent_senders_lease_ends(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    lease_s = driver.settings.fill_lease_s
    driver.pass_time(4)
    (slot, free) = driver.status().slots
    assert slot.silent_s == pytest.approx(4)
    assert slot.lease_left_s == pytest.approx(lease_s - 4)
    assert free.lease_left_s == 0
    driver.pass_time(slot.lease_left_s - 0.1)
    assert driver.status().slots[0].state == "FILLING"
    driver.pass_time(0.2)
    assert driver.status().slots[0].state == "FREE"


def test_a_status_tells_for_how_long_each_key_is_on_the_device(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    sender.stage("b")
    for lend in trainer.lends(2):
        trainer.promoted(lend)
        driver.pass_time(3)
    (queue,) = driver.status().queues
    assert queue.on_device == ("a", "b")
    assert list(queue.on_device_s) == pytest.approx([6, 3])


def test_a_refusal_for_an_unknown_micro_batch_is_no_part_of_any_story(driver: Driver, sender: Sender) -> None:
    [answer] = sender.say(Forget(queue="train", key="never"))
    assert isinstance(answer, Refused)
    (noted,) = moments(driver, "refuse")
    assert noted.key == ""
