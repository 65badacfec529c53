"""How trainers come and go, and what becomes of what they held."""

from __future__ import annotations

import itertools

import pytest

from forebay.wire import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Done,
    FindPool,
    Granted,
    Lend,
    MicroBatchState,
    PoolFound,
    Reached,
    RefusalCode,
    Refused,
    Staged,
    Want,
)

from .ledger_driver import LIMITS, ME, Driver, only
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


# --- attaching ---


def test_a_trainer_is_told_where_the_pool_is_before_it_attaches(driver: Driver) -> None:
    with driver.nothing_moves():
        found = only(Trainer(driver).say(FindPool(id=3, version=PROTOCOL_VERSION)), PoolFound)
    assert (found.id, found.version, found.pool, found.epoch) == (3, PROTOCOL_VERSION, "/pool", "epoch-1")


def test_a_trainer_that_attaches_in_parts_is_known_with_all_that_it_named(
    driver: Driver, trainer: Trainer
) -> None:
    sender = Sender(driver)
    sender.say_hello()
    sender.stage("a")
    [lend] = trainer.lends(1)
    held = [(lend.slot, lend.generation)]
    for key in ("b", "c"):
        only(trainer.attach(held=held, on_device=[(key, f"train/{key}/1")]), Attached)
    assert driver.on_device() == ("b", "c")
    for key in ("b", "c"):
        assert only(sender.offer(key), Staged).state is MicroBatchState.ON_DEVICE
    trainer.promoted(lend)
    assert driver.on_device() == ("b", "c", "a")


def test_an_attached_trainer_is_told_the_limits_and_its_lock_is_watched(driver: Driver) -> None:
    attached = only(Trainer(driver).attach(), Attached)
    assert (attached.epoch, attached.limits) == ("epoch-1", LIMITS)
    assert driver.watched == ["holder1"]
    [queue] = driver.status().queues
    assert queue.trainer is not None
    assert (queue.trainer.name, queue.trainer.pid) == ("trainer-holder1", 4711)


def test_a_trainer_of_another_version_is_told_both(driver: Driver) -> None:
    with driver.nothing_moves():
        refused = only(Trainer(driver).attach(version=PROTOCOL_VERSION + 7), Refused)
    assert (refused.code, refused.version) == (RefusalCode.VERSION, PROTOCOL_VERSION)
    assert str(PROTOCOL_VERSION + 7) in refused.words
    assert f"daemon {PROTOCOL_VERSION}" in refused.words


def test_a_second_trainer_is_refused_by_name_while_the_first_lives(driver: Driver, trainer: Trainer) -> None:
    driver.pass_time(90.0)
    second = Trainer(driver, "holder2")
    with driver.nothing_moves():
        refused = only(second.attach(), Refused)
    assert refused.code is RefusalCode.QUEUE_TAKEN
    for word in ("'train'", "trainer-holder1", "pid 4711", "gpu-host", "90.0 s"):
        assert word in refused.words
    trainer.die()
    only(second.attach(), Attached)


def test_a_second_trainer_is_refused_until_the_lock_of_a_detached_one_is_free(
    driver: Driver, trainer: Trainer
) -> None:
    only(trainer.detach(), Done)
    second = Trainer(driver, "holder2")
    assert only(second.attach(), Refused).code is RefusalCode.QUEUE_TAKEN
    trainer.die()
    only(second.attach(), Attached)


def test_the_same_holder_attaches_again_and_is_watched_once(driver: Driver) -> None:
    only(Trainer(driver, route="reconnected").attach(), Attached)
    assert driver.watched == ["holder1"]


def test_the_same_holder_is_sent_only_the_lends_that_it_does_not_know(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    first, *_ = trainer.lends(2)
    again = Trainer(driver, route="reconnected")
    attached, lend = again.attach(held=[(first.slot, first.generation)])
    assert isinstance(attached, Attached)
    assert isinstance(lend, Lend)
    assert (lend.key, lend.on_credit) == ("b", False)
    assert driver.ready() == ("c",)
    assert keys(again.lends(1)) == ["c"], "credit counts from zero again"


def test_a_stale_generation_in_held_is_no_knowledge_of_the_lend(sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    [lend] = trainer.lends(1)
    _, again = trainer.attach(held=[(lend.slot, lend.generation - 1)])
    assert isinstance(again, Lend)
    assert again.key == "a"


def test_the_old_connection_of_a_trainer_that_attached_again_is_not_attached(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    only(Trainer(driver, route="reconnected").attach(), Attached)
    with driver.nothing_moves():
        assert only(trainer.want(1), Refused).code is RefusalCode.NOT_ATTACHED


def test_one_holder_cannot_be_at_two_queues(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    trainer.lends(1)
    elsewhere = Trainer(driver, queue="eval")
    with driver.nothing_moves():
        assert only(elsewhere.attach(), Refused).code is RefusalCode.BAD_REQUEST
    trainer.die()
    assert driver.ready() == ("a",), "nothing of what it held is stranded"


def test_a_message_of_a_holder_that_never_attached_is_refused(driver: Driver, sender: Sender) -> None:
    sender.stage("a")
    stranger = Trainer(driver, "stranger")
    lend = Lend(slot=0, generation=1, key="a", file_bytes=1, on_credit=True)
    with driver.nothing_moves():
        answers = (stranger.want(1), stranger.promoted(lend), stranger.finished("a", lend=lend), stranger.detach())
        for answer in answers:
            assert only(answer, Refused).code is RefusalCode.NOT_ATTACHED


def test_nobody_else_can_detach_a_trainer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    trainer.lends(1)
    impostor = Trainer(driver, trainer.holder, route="impostor")
    with driver.nothing_moves():
        assert only(impostor.detach(), Refused).code is RefusalCode.NOT_ATTACHED


# --- going ---


def test_a_detached_trainers_slots_are_quarantined_until_its_lock_is_free(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    trainer.lends(2)
    only(trainer.detach(), Done)
    assert driver.states() == ["QUARANTINED", "QUARANTINED", "READY", "FREE"]
    assert driver.ready() == ("c",)
    with driver.nothing_moves():
        assert only(trainer.detach(), Refused).code is RefusalCode.NOT_ATTACHED
        assert only(trainer.want(9), Refused).code is RefusalCode.NOT_ATTACHED
    trainer.die()
    assert driver.states() == ["READY", "READY", "READY", "FREE"]
    assert driver.ready() == ("a", "b", "c"), "in their old places"
    assert driver.forgotten == ["holder1"]


def test_a_dead_trainers_slots_come_back_in_their_old_order_for_the_next_one(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    assert keys(trainer.lends(1, "c")) == ["c", "a"]
    trainer.die()
    assert driver.ready() == ("a", "b", "c")
    sender.stage("d")
    following = Trainer(driver, "holder2")
    following.attach()
    assert keys(following.lends(4)) == ["a", "b", "c", "d"]


def test_what_a_dead_trainer_had_on_its_device_is_lost_by_name(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    assert sender.wait_for("a") == []
    trainer.die()
    [gone] = sender.heard()
    for word in ("trainer-holder1", "pid 4711", "gpu-host", MicroBatchState.LOST):
        assert word in str(gone)
    assert driver.on_device() == ()
    assert only(sender.offer("a", "another"), Granted).attempt == "another"


def test_what_a_detached_trainer_had_on_its_device_is_lost(sender: Sender, trainer: Trainer) -> None:
    sender.stage("a")
    trainer.promoted(trainer.lends(1)[0])
    trainer.detach()
    assert only(sender.offer("a"), Staged).state is MicroBatchState.LOST


def test_a_lock_that_is_free_twice_or_was_never_watched_moves_nothing(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    trainer.lends(1)
    trainer.die()
    with driver.nothing_moves():
        for holder in ("holder1", "nobody"):
            driver.perform(driver.ledger.holder_free(holder, driver.now))


def test_nothing_is_lent_to_a_trainer_that_detached(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    trainer.want(5, "a")
    trainer.detach()
    trainer.heard()
    sender.stage("a")
    assert trainer.heard() == []
    assert driver.ready() == ("a",)


def test_a_trainer_that_detached_may_come_back_to_release_its_slots(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    # It was closing, and its last reports were lost but not its farewell.
    for key in ("a", "b", "c"):
        sender.stage(key)
    first, second, third = trainer.lends(3)
    trainer.detach()
    held = [(lend.slot, lend.generation) for lend in (first, second, third)]
    only(trainer.attach(held=held), Attached)
    only(trainer.promoted(first), Done)
    only(trainer.finished("a"), Done)
    only(trainer.finished("b", lend=second, reason="closing"), Done)
    assert driver.states() == ["FREE", "FREE", "QUARANTINED", "FREE"]
    assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED
    trainer.die()
    assert driver.ready() == ("c",), "what it trained or gave up is not lent again"


def test_lends_and_deaths_over_and_over_strand_no_slot(driver: Driver, sender: Sender) -> None:
    for round_number in itertools.count():
        if round_number == 20:
            break
        trainer = Trainer(driver, f"holder{round_number}x")
        only(trainer.attach(), Attached)
        key = f"key{round_number}"
        sender.stage(key)
        lends = trainer.lends(4)
        assert keys(lends)[0] == key
        if round_number % 2:
            trainer.promoted(lends[0])
            trainer.finished(key)
        else:
            trainer.finished(key, lend=lends[0], reason="odd")
        trainer.die()
    assert driver.states() == ["FREE"] * 4
    assert driver.watched == []


# --- hostile or broken ---


@pytest.mark.parametrize(
    "holder", ["", "../../etc/passwd", "a/b", "..", "x" * 65, "naïve", "white space", "new\nline", "nul\0", "a-b"]
)
def test_a_holders_name_that_is_no_file_name_is_refused(driver: Driver, holder: str) -> None:
    trainer = Trainer(driver, holder, route="route")
    with driver.nothing_moves():
        assert only(trainer.attach(), Refused).code is RefusalCode.BAD_REQUEST
        assert only(trainer.want(1), Refused).code is RefusalCode.NOT_ATTACHED
        assert only(trainer.detach(), Refused).code is RefusalCode.NOT_ATTACHED


def test_a_holder_whose_lock_cannot_stand_for_it_is_refused_in_these_words(
    driver: Driver, trainer: Trainer
) -> None:
    request = Attach(id=1, version=PROTOCOL_VERSION, peer=ME, queue="train", holder=trainer.holder)
    with driver.nothing_moves():
        actions = driver.ledger.trainer(trainer.address, request, driver.now, holder_fault="it is a folder")
        driver.perform(actions)
        refused = only(trainer.heard(), Refused)
        assert (refused.code, refused.words) == (RefusalCode.BAD_REQUEST, "it is a folder")


@pytest.mark.parametrize("queue", ["", "q" * 65])
def test_a_queue_name_that_is_none_is_refused(driver: Driver, queue: str) -> None:
    with driver.nothing_moves():
        assert only(Trainer(driver, queue=queue).attach(), Refused).code is RefusalCode.BAD_REQUEST


def test_impossible_numbers_from_a_trainer_move_nothing_else(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a")
    with driver.nothing_moves():
        only(trainer.attach(held=[(-1, -1), (1 << 60, 1 << 60)], on_device=[]), Attached)
        assert trainer.say(Want(holder="holder1", credit_total=-(1 << 60))) == []
    assert keys(trainer.lends(1 << 60)) == ["a"]


def test_an_attach_that_finds_something_stale_gives_its_slot_to_whoever_waits() -> None:
    driver = Driver(slots=1)
    sender, trainer = Sender(driver, "orchestrator"), Trainer(driver, "holder1")
    sender.stage("stale", expires_s=1.0)
    assert sender.offer("waits") == []
    driver.now += 2.0  # no turn of the loop comes between
    trainer.attach()
    assert isinstance(sender.heard()[0], Granted)


def test_who_repeats_an_attempt_that_is_over_hears_nothing_unasked_when_its_key_is_trained() -> None:
    driver = Driver(slots=1)
    sender, trainer = Sender(driver, "orchestrator"), Trainer(driver, "holder1")
    sender.grant("k")
    sender.abandon("k")
    assert only(sender.offer("k"), Refused).code is RefusalCode.DROPPED
    trainer.attach()
    trainer.finished("k")
    assert sender.heard() == []
