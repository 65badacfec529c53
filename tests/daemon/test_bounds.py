"""What peers can make the ledger hold is bounded, and each refusal names the setting."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.daemon.memory_watch import MemoryWatch, private_bytes
from forebay.wire import (
    MAX_ENTRIES,
    Advance,
    Attached,
    Await,
    Done,
    Gone,
    HostError,
    MicroBatchState,
    Reached,
    RefusalCode,
    Refused,
    WasReset,
    default_registry,
    describe,
    flatten,
)

from .ledger_driver import LIMITS, Driver, only
from .ledger_peers import Sender, Trainer


def queues(driver: Driver) -> list[str]:
    return [queue.name for queue in driver.status().queues]


def test_a_queue_that_holds_nothing_and_has_no_trainer_is_forgotten() -> None:
    driver = Driver()
    sender = Sender(driver)
    sender.stage("k", queue="one")
    assert queues(driver) == ["one"]
    assert only(sender.reset("one"), WasReset).dropped == 1
    assert queues(driver) == []


def test_queues_that_come_and_go_leave_nothing() -> None:
    driver = Driver()
    sender = Sender(driver)
    for number in range(500):
        sender.stage("k", queue=f"queue {number}")
        sender.reset(f"queue {number}")
    assert queues(driver) == []


def test_a_queue_with_a_trainer_stays_until_that_is_gone() -> None:
    driver = Driver()
    trainer = Trainer(driver, queue="one")
    trainer.attach()
    sender = Sender(driver)
    sender.stage("k", queue="one")
    sender.reset("one")
    assert queues(driver) == ["one"]
    trainer.die()
    assert queues(driver) == []


def test_more_queues_than_may_be_are_refused_to_both_sides() -> None:
    driver = Driver(slots=3, max_queues=2)
    sender = Sender(driver)
    sender.stage("k", queue="one")
    sender.stage("k", queue="two")
    with driver.nothing_moves():
        trainer = Trainer(driver, queue="three")
        for said in (sender.offer("k", queue="three"), sender.advance(1, queue="three"), trainer.attach()):
            refused = only(said, Refused)
            assert refused.code is RefusalCode.TOO_MANY
            assert "max_queues" in refused.words
    sender.reset("one")
    sender.stage("k", queue="three")


def entries(first: int, count: int = MAX_ENTRIES) -> list[tuple[str, str]]:
    return [(f"key {number}", "attempt") for number in range(first, first + count)]


def test_a_trainer_that_names_ever_more_keys_on_its_device_is_refused() -> None:
    driver = Driver(remembered_keys=1)
    trainer = Trainer(driver)
    with driver.nothing_moves():
        refused = only(trainer.attach(on_device=entries(0, MAX_ENTRIES + 1)), Refused)
        assert refused.code is RefusalCode.TOO_MANY
    only(trainer.attach(on_device=entries(0)), Attached)
    only(trainer.attach(on_device=entries(0)), Attached)
    with driver.nothing_moves():
        refused = only(trainer.attach(on_device=entries(1)), Refused)
        assert refused.code is RefusalCode.TOO_MANY
        assert f"{MAX_ENTRIES} micro-batches are on this trainer's device" in refused.words
        assert "remembered_keys" in refused.words
    only(trainer.finished("key 0", attempt="attempt"), Done)
    only(trainer.attach(on_device=entries(1)), Attached)


def test_as_many_keys_as_are_remembered_may_be_on_a_device() -> None:
    driver = Driver(remembered_keys=3 * MAX_ENTRIES)
    trainer = Trainer(driver)
    for first in range(3):
        only(trainer.attach(on_device=entries(first * MAX_ENTRIES)), Attached)
    assert len(driver.on_device()) == 3 * MAX_ENTRIES
    with driver.nothing_moves():
        assert only(trainer.attach(on_device=[("one more", "")]), Refused).code is RefusalCode.TOO_MANY


def test_a_slot_is_not_released_onto_a_device_that_has_too_many_keys() -> None:
    driver = Driver(remembered_keys=1)
    sender, trainer = Sender(driver), Trainer(driver)
    only(trainer.attach(on_device=entries(0, MAX_ENTRIES - 1)), Attached)
    for key in ("a", "b"):
        sender.stage(key)
    first, second = trainer.lends(2)
    only(trainer.promoted(first), Done)
    with driver.nothing_moves():
        refused = only(trainer.promoted(second), Refused)
        assert (refused.code, "remembered_keys" in refused.words) == (RefusalCode.TOO_MANY, True)
        only(trainer.promoted(first), Done)  # a repeat
    # Trained from its slot, or after another has ended, it is no more than before.
    only(trainer.finished("key 0", attempt="attempt"), Done)
    only(trainer.promoted(second), Done)
    with driver.nothing_moves():
        only(trainer.promoted(first), Done)
    only(trainer.finished("by another way"), Done)
    assert len(driver.on_device()) == MAX_ENTRIES
    assert driver.states() == ["FREE", "FREE"]


def awaits(sender: Sender, key: str, request_id: int) -> list[object]:
    request = Await(id=request_id, queue="train", key=key, until=MicroBatchState.CONSUMED)
    return list(sender.say(request))


@pytest.mark.parametrize(("bound", "others"), [("max_waits_per_peer", 1), ("max_waits", 0)])
def test_more_waits_than_may_be_are_refused_and_a_repeat_is_none(bound: str, others: int) -> None:
    driver = Driver(**{bound: 3})
    sender, other = Sender(driver), Sender(driver, "other")
    sender.stage("k")
    for number in range(3):
        assert awaits(sender, "k", 100 + number) == []
    with driver.nothing_moves():
        [refused] = awaits(sender, "k", 200)
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.TOO_MANY
        assert bound in refused.words
        assert awaits(sender, "k", 100) == []
        assert len(awaits(other, "k", 300)) == 1 - others


def test_waits_that_end_make_room_for_others() -> None:
    driver = Driver(max_waits_per_peer=2)
    sender = Sender(driver)
    for number in range(20):
        sender.stage(f"k{number}")
        awaits(sender, f"k{number}", 100 + number)
        assert sender.reset()
    driver.pass_time(100)
    sender.stage("last")
    assert awaits(sender, "last", 500) == []
    assert awaits(sender, "last", 501) == []
    assert len(awaits(sender, "last", 502)) == 1


def test_offers_that_wait_take_no_more_bytes_than_they_may() -> None:
    driver = Driver(slots=1, max_waiting_bytes=1000)
    sender = Sender(driver)
    sender.grant("in the slot")
    refusals = []
    for number in range(20):
        refusals += [said for said in sender.offer(f"waits {number}", wait_s=60.0) if isinstance(said, Refused)]
    assert refusals
    assert {refusal.code for refusal in refusals} == {RefusalCode.TOO_MANY_OFFERS}
    assert all("max_waiting_bytes" in refusal.words for refusal in refusals)
    assert 0 < driver.status().waiting_offers < 20


def test_a_refusal_for_want_of_a_slot_stays_short_however_many_slots_there_are() -> None:
    driver = Driver(slots=200)
    sender = Sender(driver)
    for number in range(200):
        sender.stage(f"key {number}")
    refused = only(sender.offer("one more", wait_s=0.0), Refused)
    assert refused.code is RefusalCode.NO_SLOT
    assert "and 192 more" in refused.words
    assert len(refused.words) < 2000


def test_a_key_of_any_length_is_answered_with_few_words() -> None:
    driver = Driver()
    sender = Sender(driver)
    [refused] = awaits(sender, "\x1b]0;title\x07" + "k" * 1_000_000, 1)
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.UNKNOWN_KEY
    assert len(refused.words) < 1000
    assert refused.words.isprintable()


def test_too_much_private_memory_ends_the_daemon_with_the_reason() -> None:
    watch = MemoryWatch(private_bytes() // 2)
    with pytest.raises(HostError, match="max_private_bytes"):
        watch.look(0.0)


def test_memory_is_looked_at_the_sooner_the_less_room_is_left() -> None:
    roomy, tight = MemoryWatch(1 << 40), MemoryWatch(private_bytes() + (200 << 20))
    for watch in (roomy, tight):
        watch.look(10.0)
    assert roomy.next_look_at == 11.0
    assert tight.next_look_at is not None
    assert 10.0 < tight.next_look_at < 11.0
    assert MemoryWatch(0).next_look_at is None


def test_a_wait_is_answered_as_ever() -> None:
    driver = Driver()
    sender = Sender(driver)
    sender.stage("k")
    request = Await(id=9, queue="train", key="k", until=MicroBatchState.READY)
    assert only(sender.say(request), Reached).state is MicroBatchState.READY


def test_a_queue_keeps_its_version_when_nothing_else_is_left_and_makes_room_when_that_is_needed() -> None:
    driver = Driver(slots=1, max_queues=2, max_versions_behind=0)
    sender = Sender(driver)
    for version, queue in enumerate(("a", "b"), start=5):
        sender.say(Advance(id=driver.new_id(), queue=queue, policy_version=version))
    sender.stage("k", queue="b")
    sender.abandon("k", queue="b")
    assert [(found.name, found.policy_version) for found in driver.status().queues] == [("a", 5), ("b", 6)]
    # The one whose version was told longest ago goes.
    driver.pass_time(1.0)
    sender.heard()
    sender.say(Advance(id=driver.new_id(), queue="a", policy_version=5))
    sender.heard()
    sender.stage("k", queue="c")
    assert [found.name for found in driver.status().queues] == ["a", "c"]


def test_a_queue_that_was_reset_and_holds_nothing_is_forgotten_with_its_version() -> None:
    driver = Driver()
    sender = Sender(driver)
    sender.say(Advance(id=driver.new_id(), queue="a", policy_version=5))
    sender.stage("k", queue="a")
    sender.reset("a")
    assert queues(driver) == []


def test_a_version_makes_no_queue_beyond_the_limit() -> None:
    driver = Driver(slots=2, max_queues=1)
    sender = Sender(driver)
    sender.stage("k", queue="a")
    with driver.nothing_moves():
        refused = only(sender.say(Advance(id=driver.new_id(), queue="b", policy_version=1)), Refused)
    assert (refused.code, "max_queues" in refused.words) == (RefusalCode.TOO_MANY, True)


def test_replacing_an_offer_that_waits_takes_no_more_bytes_than_may_wait() -> None:
    driver = Driver(slots=1, max_waiting_bytes=2000)
    sender = Sender(driver)
    sender.grant("holds the slot")
    assert sender.offer("k0") == []
    flat = flatten(
        {f"x{index}": np.zeros(1, np.uint8) for index in range(100)}, registry=default_registry, limits=LIMITS
    )
    large = describe(flat, LIMITS).encode(LIMITS)
    assert len(large) > 2000
    with driver.nothing_moves():
        refused = only(sender.offer("k0", "another", manifest=large), Refused)
    assert (refused.code, "max_waiting_bytes" in refused.words) == (RefusalCode.TOO_MANY_OFFERS, True)


def test_a_trainers_words_are_kept_no_longer_than_anybody_reads() -> None:
    driver = Driver()
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    sender.stage("a")
    [lend] = trainer.lends(1)
    trainer.finished("a", lend=lend, reason="x" * 1_000_000)
    assert len(only(sender.wait_for("a"), Gone).reason) < 300
