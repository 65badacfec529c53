"""What a client may ask of the ledger, and what it hears of others while it may not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from forebay.daemon.actions import Address, Channel
from forebay.shm import SlotState
from forebay.wire import (
    PROTOCOL_VERSION,
    STRANGER,
    Advance,
    Client,
    ControlRequest,
    GetStatus,
    Granted,
    Hello,
    Message,
    Peer,
    Reached,
    RefusalCode,
    Refused,
    Right,
    Status,
    WasReset,
    Welcome,
    encode_message,
)

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer

SECRETS = ("secret-key", "secret-queue", "secret-attempt", "trainer-", "4711", "gpu-host")
"""What there is in queues of others: keys, names, attempts, holders."""


class Guest(Sender):
    """A connection of a client that the operator knows.

    Args:
        driver: The daemon.
        client: Who it is.
        routing: Its routing id.
    """

    def __init__(self, driver: Driver, client: Client, routing: str = "guest", *, hello: bool = True) -> None:
        super().__init__(driver, routing, hello=False)
        self.client = client
        self.address = Address(Channel.CONTROL, routing.encode(), f"key of {client.name}")
        if hello:
            self.say_hello()

    def say(self, request: ControlRequest) -> list[Message]:
        self._driver.perform(self._driver.ledger.control(self.address, request, self._driver.now, self.client))
        return self.heard()


def stager(*queues: str) -> Client:
    return Client("stager", frozenset({Right.STAGE}), frozenset(queues) if queues else None)


def hello() -> Hello:
    return Hello(id=9, version=PROTOCOL_VERSION, peer=Peer(name="g", pid=1, host="h"))


def refused(messages: list[Message]) -> Refused:
    refusal = only(messages, Refused)
    assert refusal.code is RefusalCode.NOT_ALLOWED
    return refusal


Ask = Callable[[Guest], list[Message]]
IN_QUEUE: dict[str, Ask] = {
    "offer": lambda guest: guest.offer("secret-key", "secret-attempt", queue="secret-queue"),
    "abandon": lambda guest: guest.abandon("secret-key", "secret-attempt", queue="secret-queue"),
    "await": lambda guest: guest.wait_for("secret-key", queue="secret-queue"),
    "reset": lambda guest: guest.reset("secret-queue"),
    "advance": lambda guest: guest.say(Advance(id=5, queue="secret-queue", policy_version=9)),
}


def occupied(slots: int = 2) -> Driver:
    """Returns a daemon whose slots are all taken by others: the first is lent, the others are ready."""
    driver = Driver(slots)
    owner, trainer = Sender(driver), Trainer(driver, queue="secret-queue")
    for number in range(slots):
        owner.stage(f"secret-key-{number}", f"secret-attempt-{number}", queue="secret-queue")
    trainer.attach()
    trainer.lends(1)
    return driver


# --- each right ---


@pytest.mark.parametrize("ask", IN_QUEUE.values(), ids=IN_QUEUE.keys())
@pytest.mark.parametrize("right", [Right.TRAIN, Right.INSPECT])
def test_who_may_not_stage_moves_nothing_in_any_queue(ask: Ask, right: Right) -> None:
    driver = occupied()
    guest = Guest(driver, Client("guest", frozenset({right})))
    with driver.nothing_moves():
        assert "client 'guest' lacks the right 'stage'" in refused(ask(guest)).words


@pytest.mark.parametrize("ask", IN_QUEUE.values(), ids=IN_QUEUE.keys())
def test_who_may_stage_elsewhere_moves_nothing_in_queues_of_others(ask: Ask) -> None:
    driver = occupied()
    guest = Guest(driver, stager("mine"))
    with driver.nothing_moves():
        words = refused(ask(guest)).words
    assert words == "client 'stager' lacks the right 'stage' in queue 'secret-queue'", (
        "the same, whatever is there"
    )


@pytest.mark.parametrize("ask", IN_QUEUE.values(), ids=IN_QUEUE.keys())
def test_a_queue_that_there_is_not_is_refused_in_the_same_words(ask: Ask) -> None:
    driver = Driver()
    guest = Guest(driver, stager("mine"))
    with driver.nothing_moves():
        words = refused(ask(guest)).words
    assert words == "client 'stager' lacks the right 'stage' in queue 'secret-queue'"


def test_who_may_stage_does_all_of_it_in_its_own_queues() -> None:
    driver = Driver()
    guest = Guest(driver, stager("mine"))
    guest.stage("k", queue="mine")
    assert guest.wait_for("k", queue="mine") == []
    guest.abandon("k", queue="mine")
    guest.stage("l", queue="mine")
    assert only(guest.reset("mine"), WasReset).dropped == 1


@pytest.mark.parametrize("right", [Right.TRAIN, Right.STAGE])
def test_only_who_may_inspect_sees_the_status(right: Right) -> None:
    driver = occupied()
    ask = GetStatus(id=driver.new_id())
    assert "lacks the right 'inspect'" in refused(Guest(driver, Client("g", frozenset({right}))).say(ask)).words
    inspector = Guest(driver, Client("i", frozenset({Right.INSPECT}), frozenset()), "inspector2")
    assert only(inspector.say(ask), Status).queues[0].ready == ("secret-key-1",)


def test_a_stranger_is_not_even_greeted() -> None:
    driver = Driver()
    guest = Guest(driver, STRANGER, hello=False)
    with driver.nothing_moves():
        for request in (hello(), GetStatus(id=3)):
            assert "not authorised" in refused(guest.say(request)).words


def test_a_right_that_was_taken_away_counts_from_the_next_message_on() -> None:
    driver = Driver()
    guest = Guest(driver, stager())
    grant = guest.grant("k")
    guest.client = STRANGER
    with driver.nothing_moves():
        refused(guest.offer("k"))
        refused(guest.reset())
    assert driver.slots[grant.slot].state is SlotState.FILLING, "its slot comes back with its lease"


# --- what is heard of others ---


def test_the_welcome_shows_nothing_of_any_queue() -> None:
    driver = occupied()
    guest = Guest(driver, stager("mine"), hello=False)
    shown = encode_message(only(guest.say(hello()), Welcome)).decode(errors="replace")
    assert not [secret for secret in SECRETS if secret in shown]


def test_a_refusal_for_want_of_a_slot_names_no_key_and_no_holder_of_others() -> None:
    driver = occupied()
    guest = Guest(driver, stager("mine"))
    refusal = only(guest.offer("k", queue="mine", wait_s=0), Refused)
    assert refusal.code is RefusalCode.NO_SLOT
    shown = "slot 0 LENT, slot 1 READY; wait longer (wait_s), or give the pool more slots (slots)"
    assert refusal.words == f"no slot became free for 'k' within 0.0 s: {shown}"


def test_a_refusal_after_a_wait_names_no_key_and_no_holder_of_others_either() -> None:
    driver = occupied()
    guest = Guest(driver, stager("mine"))
    assert guest.offer("k", queue="mine", wait_s=5) == []
    driver.pass_time(6)
    words = only(guest.heard(), Refused).words
    assert not [secret for secret in SECRETS if secret in words]
    again = only(guest.offer("k", queue="mine", wait_s=5), Refused)
    assert again.words == words, "nor does its repeat"


def test_who_may_see_a_queue_hears_who_holds_its_slots() -> None:
    driver = occupied()
    for number, client in enumerate((stager("mine", "secret-queue"), stager())):
        guest = Guest(driver, client, f"g{number}")
        words = only(guest.offer("k", f"attempt{number}", queue="secret-queue", wait_s=0), Refused).words
        for secret in ("secret-key-0", "secret-key-1", "trainer-", "4711", "gpu-host"):
            assert secret in words


def test_who_takes_over_an_attempt_hears_what_it_may_see_and_not_what_the_first_one_might() -> None:
    driver = occupied()
    first, second = Guest(driver, stager(), "first"), Guest(driver, stager("mine"), "second")
    assert first.offer("k", queue="mine", wait_s=5) == []
    second.offer("k", queue="mine", wait_s=5)
    second.heard()
    driver.pass_time(6)
    words = only(second.heard(), Refused).words
    assert not [secret for secret in SECRETS if secret in words]


def test_who_repeats_an_attempt_that_was_refused_hears_nothing_that_the_first_one_might() -> None:
    driver = occupied()
    first, second = Guest(driver, stager(), "first"), Guest(driver, stager("mine"), "second")
    assert first.offer("k", queue="mine", wait_s=5) == []
    driver.pass_time(6)
    refused = only(first.heard(), Refused)
    assert [secret for secret in SECRETS if secret in refused.words], "it may see them"
    words = only(second.offer("k", queue="mine", wait_s=5), Refused).words
    assert words == "no slot became free for 'k' within 6.0 s"
    assert only(first.offer("k", queue="mine", wait_s=5), Refused).words == refused.words


# --- one routing id, two clients ---


def test_who_comes_with_anothers_routing_id_has_to_say_hello_itself() -> None:
    driver = Driver()
    Guest(driver, stager("mine"), "same")
    other = Guest(driver, dataclasses.replace(stager("other"), name="other"), "same", hello=False)
    with driver.nothing_moves():
        assert only(other.offer("k", queue="other"), Refused).code is RefusalCode.HELLO_FIRST


def test_what_was_promised_to_a_client_is_addressed_to_its_key() -> None:
    driver = Driver(1)
    first = Guest(driver, stager("mine"), "same")
    first.stage("k", queue="mine")
    assert first.offer("l", queue="mine") == []
    other = Guest(driver, dataclasses.replace(stager("other"), name="other"), "same")
    answers = first.abandon("k", queue="mine")
    assert {type(answer) for answer in answers} == {Granted, Reached}
    assert other.heard() == [], "neither the token nor the answer"


def test_a_daemon_without_keys_allows_everything() -> None:
    driver = occupied()
    anybody = Sender(driver, "anybody")
    assert isinstance(anybody.offer("k", wait_s=0)[0], Refused | Granted)
    assert only(anybody.reset("secret-queue"), WasReset).dropped == 1
