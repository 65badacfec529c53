"""Offers that bring their body: published without a grant, or with one where the body is no good."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from forebay.daemon.actions import Reply, WriteBody, WriteLoan, WriteState
from forebay.shm import SlotState
from forebay.wire import Granted, Lend, MicroBatchState, Reached, RefusalCode, Refused, Staged, WasReset

from .eager_driver import MAX_EAGER_BYTES, EagerDriver, body_of, offer_eagerly
from .ledger_driver import only
from .ledger_peers import Sender, Trainer

LEASE_S = 10.0


@pytest.fixture
def driver() -> EagerDriver:
    return EagerDriver(slots=2, fill_lease_s=LEASE_S)


def take_all_slots(driver: EagerDriver) -> Sender:
    """Has somebody else fill every slot."""
    other = Sender(driver, "other")
    for index in range(len(driver.slots)):
        other.grant(f"other{index}", queue="elsewhere")
    return other


# --- at once ---


def test_it_is_published_at_once_without_a_grant(driver: EagerDriver, sender: Sender) -> None:
    staged = only(offer_eagerly(driver, sender, "k"), Staged)
    assert staged.state is MicroBatchState.READY
    assert (driver.states(), driver.ready(), driver.bodies) == (["READY", "FREE"], ("k",), {0: body_of("k")})
    assert (driver.is_filling(), driver.ledger.next_deadline()) == (False, None)
    assert (driver.count("published"), driver.count("published_bytes")) == (1, 600)


def test_its_bytes_lie_in_the_slot_before_anybody_hears_of_them(driver: EagerDriver, trainer: Trainer) -> None:
    trainer.want(1)
    sender = Sender(driver)
    driver.said.clear()
    offer_eagerly(driver, sender, "k")
    assert [type(action) for action in driver.said] == [
        *(WriteLoan, WriteBody, WriteState),
        *(WriteState, Reply, Reply),
    ]
    states = [action.state for action in driver.said if isinstance(action, WriteState)]
    assert states == [SlotState.READY, SlotState.LENT]
    assert only(trainer.heard(), Lend).key == "k"


@pytest.mark.parametrize("nbytes", [1, 255, 256, 257, MAX_EAGER_BYTES])
def test_any_size_up_to_the_limit_may_come_with_its_offer(
    driver: EagerDriver, sender: Sender, nbytes: int
) -> None:
    only(offer_eagerly(driver, sender, "k", nbytes=nbytes), Staged)
    assert driver.bodies == {0: body_of("k", nbytes)}
    assert driver.count("eager_body_wrong") == 0


def test_a_slot_that_is_too_small_grows_first() -> None:
    driver = EagerDriver(slots=1, slot_bytes=4096)
    sender = Sender(driver)
    assert offer_eagerly(driver, sender, "k") == []
    assert driver.bodies == {}
    driver.grow(0)
    only(sender.heard(), Staged)
    assert driver.bodies == {0: body_of("k")}


def test_a_slot_that_cannot_grow_refuses_it() -> None:
    driver = EagerDriver(slots=1, slot_bytes=4096)
    sender = Sender(driver)
    offer_eagerly(driver, sender, "k")
    driver.fail_to_grow(0)
    assert only(sender.heard(), Refused).code is RefusalCode.SHM_FULL
    assert (driver.bodies, driver.states()) == ({}, ["FREE"])


# --- a body that is no good ---

OVER = MAX_EAGER_BYTES + 1
WRONG: dict[str, dict[str, Any]] = {
    "checksum": {"checksum": 1},
    "other bytes": {"body": body_of("another"), "checksum": 0x1234},
    "too short": {"body": body_of("k", 599)},
    "too long": {"body": body_of("k", 601)},
    "over the limit": {"nbytes": OVER},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_comes_with_a_wrong_body_is_granted_a_slot_for_its_chunks_instead(
    driver: EagerDriver, sender: Sender, wrong: dict[str, Any]
) -> None:
    nbytes = wrong.get("nbytes", 600)
    grant = only(offer_eagerly(driver, sender, "k", **wrong), Granted)
    assert grant.missing == ((0, -(-nbytes // 256)),)
    assert (driver.count("eager_body_wrong"), driver.ready(), driver.bodies) == (1, (), {})
    sender.fill(grant, nbytes=nbytes)
    assert (driver.ready(), driver.count("published")) == (("k",), 1)


def test_a_wrong_body_that_waits_is_granted_its_slot_later(driver: EagerDriver, sender: Sender) -> None:
    other = take_all_slots(driver)
    assert offer_eagerly(driver, sender, "k", checksum=1) == []
    other.abandon("other0", queue="elsewhere")
    sender.fill(only(sender.heard(), Granted))
    assert (driver.ready(), driver.bodies) == (("k",), {})


def test_an_offer_without_a_body_has_no_wrong_one(driver: EagerDriver, sender: Sender) -> None:
    only(offer_eagerly(driver, sender, "k", body=b""), Granted)
    assert driver.count("eager_body_wrong") == 0


@pytest.mark.parametrize("body", [b"", b"x"])
def test_a_micro_batch_without_bytes_is_published_whatever_comes_with_it(
    driver: EagerDriver, sender: Sender, body: bytes
) -> None:
    offer_eagerly(driver, sender, "k", nbytes=0, body=body)
    assert (driver.ready(), driver.bodies, driver.count("eager_body_wrong")) == (("k",), {}, len(body))


# --- while it waits ---


def other_gives_up(_driver: EagerDriver, other: Sender) -> None:
    other.abandon("other0", queue="elsewhere")


def other_is_silent(driver: EagerDriver, _other: Sender) -> None:
    driver.pass_time(LEASE_S)


def others_are_reset(_driver: EagerDriver, other: Sender) -> None:
    other.reset("elsewhere")


def other_is_consumed(driver: EagerDriver, other: Sender) -> None:
    critic = Trainer(driver, "holder2", queue="elsewhere")
    critic.attach()
    other.fill(only(other.offer("other0", queue="elsewhere"), Granted))
    critic.promoted(critic.lends(1)[0])


Free = Callable[[EagerDriver, Sender], None]


@pytest.mark.parametrize("free", [other_gives_up, other_is_silent, others_are_reset, other_is_consumed])
def test_it_waits_for_a_slot_and_is_published_when_one_is_free_without_a_grant(
    driver: EagerDriver, sender: Sender, free: Free
) -> None:
    other = take_all_slots(driver)
    assert offer_eagerly(driver, sender, "k") == []
    assert (driver.ready(), driver.bodies, driver.status().waiting_offers) == ((), {}, 1)
    free(driver, other)
    assert only(sender.heard(), Staged).state is MicroBatchState.READY
    assert (driver.ready(), driver.bodies) == (("k",), {0: body_of("k")})


def test_a_repeat_while_it_waits_is_told_so_and_moves_nothing(driver: EagerDriver, sender: Sender) -> None:
    other = take_all_slots(driver)
    offer_eagerly(driver, sender, "k")
    with driver.nothing_moves():
        again = offer_eagerly(driver, sender, "k", body=body_of("something else"))
        assert only(again, Reached).state is MicroBatchState.OFFERED
    other_gives_up(driver, other)
    only(sender.heard(), Staged)
    assert driver.bodies == {0: body_of("k")}


def test_without_time_to_wait_it_is_refused_where_no_slot_is_free(driver: EagerDriver, sender: Sender) -> None:
    take_all_slots(driver)
    assert only(offer_eagerly(driver, sender, "k", wait_s=0.0), Refused).code is RefusalCode.NO_SLOT
    assert driver.bodies == {}


def replaced(driver: EagerDriver, sender: Sender) -> None:
    offer_eagerly(driver, Sender(driver, "newer"), "k", "second", body=body_of("the second"))
    assert only(sender.heard(), Refused).code is RefusalCode.REPLACED


def was_reset(_driver: EagerDriver, sender: Sender) -> None:
    refused, reset = sender.reset()
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.DROPPED
    assert isinstance(reset, WasReset)
    assert reset.dropped == 1


def abandoned(_driver: EagerDriver, sender: Sender) -> None:
    assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED


def expired(driver: EagerDriver, sender: Sender) -> None:
    driver.pass_time(5.0)
    assert only(sender.heard(), Refused).code is RefusalCode.NO_SLOT


def drained(driver: EagerDriver, sender: Sender) -> None:
    driver.perform(driver.ledger.drain(driver.now))
    assert only(sender.heard(), Refused).code is RefusalCode.DRAINING


@pytest.mark.parametrize("end", [replaced, was_reset, abandoned, expired, drained])
def test_what_ends_while_it_waits_is_told_why_lets_its_bytes_go_and_is_never_published(
    driver: EagerDriver, sender: Sender, end: Free
) -> None:
    other = take_all_slots(driver)
    body = body_of("k")
    unheld = sys.getrefcount(body)
    offer_eagerly(driver, sender, "k", body=body, wait_s=5.0)
    assert sys.getrefcount(body) == unheld + 1
    end(driver, sender)
    assert sys.getrefcount(body) == unheld
    with driver.nothing_moves():
        assert isinstance(offer_eagerly(driver, sender, "k", body=body)[0], Refused)
    assert sys.getrefcount(body) == unheld
    others_are_reset(driver, other)
    assert body not in driver.bodies.values()
    assert (sender.heard(), driver.ready()) == ([], ("k",) if end is replaced else ())


def test_what_is_published_lets_its_bytes_go(driver: EagerDriver, sender: Sender) -> None:
    body = body_of("k")
    unheld = sys.getrefcount(body)
    offer_eagerly(driver, sender, "k", body=body)
    driver.forget()
    assert sys.getrefcount(body) == unheld
