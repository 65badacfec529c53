"""What inspectors hear: one micro-batch, what happened, and what happens next."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from forebay.daemon.actions import Address, Level
from forebay.daemon.history import History
from forebay.wire import (
    MAX_MOMENTS,
    Client,
    Event,
    Events,
    GetEvents,
    GetStatus,
    Inspection,
    Message,
    MicroBatchState,
    Moment,
    Peek,
    Peeked,
    RefusalCode,
    Refused,
    Right,
    Status,
    decode_manifest,
)

from .ledger_driver import INSPECTOR, LIMITS, Driver, only
from .ledger_peers import Sender, Trainer
from .test_rights import Guest


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


def ask(driver: Driver, peer: Address = INSPECTOR, **question: Any) -> list[Any]:
    return list(driver.say(peer, GetEvents(id=driver.new_id(), **question)))


def moments(driver: Driver, **question: Any) -> tuple[Moment, ...]:
    return only(ask(driver, **question), Events).moments


def peeked(driver: Driver, key: str, queue: str = "train") -> Peeked:
    return only(driver.say(INSPECTOR, Peek(id=driver.new_id(), queue=queue, key=key)), Peeked)


# --- what happened ---


def test_the_story_of_a_micro_batch_is_told_in_order_with_its_times_and_who_did_it(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    began = driver.now
    grant = sender.grant("k")
    driver.now += 1
    sender.fill(grant)
    driver.now += 2
    [lend] = trainer.lends(1)
    driver.now += 3
    trainer.promoted(lend)
    driver.now += 4
    trainer.finished("k")
    story = moments(driver, key="k", queue="train")
    assert [(moment.event, moment.at_s - began) for moment in story] == [
        *(("offered", 0), ("filling", 0), ("ready", 1), ("lent", 3)),
        *(("released", 6), ("on_device", 6), ("consumed", 10)),
    ]
    assert story[0].who == "orchestrator pid 7 on there"
    assert story[3].who == "trainer-holder1 pid 4711 on gpu-host"
    assert {moment.slot for moment in story[1:5]} == {grant.slot}
    assert [moment.number for moment in story] == sorted({moment.number for moment in story})


def test_a_micro_batch_that_was_refused_has_a_story_too(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    only(sender.offer("k", wait_s=0), Refused)
    story = moments(driver, key="k")
    assert [moment.event for moment in story] == ["offered", "refuse", "dropped"]
    assert "no slot became free" in story[1].words
    assert "code=no_slot" in story[1].words


def test_the_end_of_a_trainer_is_told_with_what_came_back(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    trainer.lends(1)
    driver.lock_is_free(trainer.holder)
    told = {moment.event: moment for moment in moments(driver)}
    assert told["quarantined"].key == told["returned"].key == "k"
    assert told["detach"].who == "trainer-holder1 pid 4711 on gpu-host"


def test_what_is_below_the_logs_level_is_kept_and_not_logged() -> None:
    driver = Driver(least_level=Level.INFO)
    Sender(driver).stage("k")
    assert [moment.event for moment in moments(driver, key="k")] == ["offered", "filling", "ready"]
    assert not driver.logs


def test_an_answer_tells_where_the_next_question_goes_on(driver: Driver, sender: Sender) -> None:
    sender.stage("a")
    first = only(ask(driver, limit=2), Events)
    rest = only(ask(driver, after=first.last), Events)
    numbers = [moment.number for moment in (*first.moments, *rest.moments)]
    assert numbers == list(range(1, rest.last + 1))
    assert only(ask(driver, after=rest.last), Events).moments == ()


def test_a_filter_does_not_make_who_asks_look_at_the_same_moments_again(driver: Driver, sender: Sender) -> None:
    sender.stage("a")
    answer = only(ask(driver, key="b"), Events)
    assert answer.moments == ()
    assert answer.last == only(ask(driver), Events).last


# --- what happens next ---


def test_who_follows_hears_of_what_comes_and_is_not_asked_in_between(driver: Driver, sender: Sender) -> None:
    last = only(ask(driver, after=-1), Events).last
    assert ask(driver, after=last, follow_s=20) == []
    driver.pass_time(5)
    assert driver.heard(INSPECTOR) == []
    sender.stage("a")
    driver.pass_time(0.2)
    heard = only(driver.heard(INSPECTOR), Events)
    assert [moment.event for moment in heard.moments] == ["offered", "filling", "ready"]
    sender.stage("b")
    driver.pass_time(30)
    assert driver.heard(INSPECTOR) == [], "one question has one answer"


def test_who_follows_is_answered_when_its_time_is_over(driver: Driver) -> None:
    last = only(ask(driver, after=-1), Events).last
    ask(driver, after=last, follow_s=20)
    driver.pass_time(19)
    assert driver.heard(INSPECTOR) == []
    driver.pass_time(1)
    assert only(driver.heard(INSPECTOR), Events).moments == ()
    assert driver.ledger.next_deadline() is None


def test_who_follows_one_key_sleeps_through_all_others(driver: Driver, sender: Sender) -> None:
    last = only(ask(driver, after=-1), Events).last
    ask(driver, after=last, key="b", follow_s=20)
    sender.stage("a")
    driver.pass_time(1)
    assert driver.heard(INSPECTOR) == []
    sender.stage("b")
    driver.pass_time(1)
    assert {moment.key for moment in only(driver.heard(INSPECTOR), Events).moments} == {"b"}


def test_a_repeated_question_takes_the_place_of_the_first(driver: Driver, sender: Sender) -> None:
    question = GetEvents(id=77, after=only(ask(driver, after=-1), Events).last, follow_s=20)
    for _ in range(3):
        assert driver.say(INSPECTOR, question) == []
    sender.stage("a")
    driver.pass_time(1)
    assert only(driver.heard(INSPECTOR), Events).id == 77


def test_a_number_of_another_daemon_counts_as_none(driver: Driver, sender: Sender) -> None:
    sender.stage("a")
    answer = only(ask(driver, after=10**9, follow_s=20), Events)
    assert answer.moments[0].number == answer.oldest == 1


def test_only_so_many_may_follow(driver: Driver) -> None:
    guests = [Guest(driver, Client("i", frozenset({Right.INSPECT})), f"i{number}") for number in range(65)]
    last = only(ask(driver, after=-1), Events).last
    answers = [guest.say(GetEvents(id=4, follow_s=20, after=last)) for guest in guests]
    assert answers[:64] == [[]] * 64
    assert only(answers[64], Refused).code is RefusalCode.TOO_MANY


# --- how much is kept ---


def test_the_oldest_moment_makes_way_and_the_answer_says_so() -> None:
    history = History(limit=3)
    for number in range(5):
        history.note(float(number), Event.READY, {"key": str(number)})
    kept, last = history.after(0, 10)
    assert ([moment.key for moment in kept], last, history.oldest) == (["2", "3", "4"], 5, 3)
    assert [moment.number for moment in kept] == [3, 4, 5]


def test_before_the_first_moment_there_is_nothing() -> None:
    history = History(limit=3)
    assert history.after(0, 10) == ((), 0)
    assert (history.oldest, history.last) == (1, 0)


def test_no_words_are_longer_than_an_answer_can_bear() -> None:
    history = History(limit=3)
    history.note(0.0, Event.READY, {"words": "x" * 10_000})
    [moment], _ = history.after(0, MAX_MOMENTS)
    assert len(moment.words) <= 400


def test_long_words_are_not_kept_whole() -> None:
    history = History(limit=1000)
    tracemalloc.start()
    try:
        for number in range(1000):
            history.note(0.0, Event.REFUSE, {"code": "no_slot", "words": "x" * 10_000 + str(number)})
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1000 * 1500


def test_the_log_has_words_whole_that_are_kept_short(driver: Driver) -> None:
    driver.perform(driver.ledger.unreadable(INSPECTOR, "x" * 10_000))
    assert driver.logs[-1].fields["words"] == "x" * 10_000


def test_what_a_peer_calls_its_key_reaches_nobody_as_a_terminals_command() -> None:
    history = History(limit=3)
    history.note(0.0, Event.READY, {"why": "\x1b[2J"})
    [moment], _ = history.after(0, 10)
    assert moment.words == "why=\\x1b[2J"


# --- one micro-batch ---


def test_a_peek_shows_what_a_slot_holds(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    grant = sender.grant("k", version=7, expires_s=60)
    found = peeked(driver, "k")
    assert (found.state, found.slot_state) == (MicroBatchState.FILLING, "FILLING")
    assert found.sender is not None
    assert found.sender.name == "orchestrator"
    sender.fill(grant)
    driver.now += 2
    found = peeked(driver, "k")
    assert (found.state, found.slot, found.generation) == (MicroBatchState.READY, grant.slot, grant.generation)
    assert (found.place, found.age_s, found.offered_s, found.stale_in_s) == (0, 2, 2, 58)
    assert decode_manifest(found.manifest, LIMITS).payload_bytes == found.payload_bytes == 600
    [lend] = trainer.lends(1)
    driver.now += 3
    found = peeked(driver, "k")
    assert (found.slot_state, found.held_s, found.place) == ("LENT", 3, -1)
    trainer.promoted(lend)
    found = peeked(driver, "k")
    assert (found.state, found.slot, found.slot_state) == (MicroBatchState.ON_DEVICE, -1, "")
    assert found.holder is not None
    assert found.holder.pid == 4711
    trainer.finished("k")
    found = peeked(driver, "k")
    assert (found.state, found.manifest, found.holder) == (MicroBatchState.CONSUMED, b"", None)


def test_a_peek_tells_why_it_ended(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    sender.reset()
    assert peeked(driver, "k").reason == "the queue was reset"


def test_a_peek_at_what_was_never_offered_is_refused(driver: Driver) -> None:
    with driver.nothing_moves():
        answer = only(driver.say(INSPECTOR, Peek(id=3, queue="train", key="k")), Refused)
    assert answer.code is RefusalCode.UNKNOWN_KEY


# --- the status ---


def test_the_status_names_who_sends_and_for_how_long_nothing_came(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    driver.now += 4
    slot = driver.status().slots[0]
    assert slot.sender is not None
    assert (slot.sender.name, slot.silent_s) == ("orchestrator", 4)


def test_the_status_names_who_holds_since_when_and_who_was_there_before(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    trainer.lends(1)
    driver.now += 4
    slot = driver.status().slots[0]
    assert slot.holder is not None
    assert (slot.holder.name, slot.held_s) == ("trainer-holder1", 4)
    driver.lock_is_free(trainer.holder)
    driver.now += 5
    [queue] = driver.status().queues
    assert queue.last_trainer is not None
    assert (queue.trainer, queue.last_trainer.pid, queue.gone_s) == (None, 4711, 5)
    assert driver.status().slots[0].held_s == 0


def test_the_status_tells_for_how_long_a_trainer_has_asked_in_vain(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    trainer.want(1)
    driver.now += 6
    assert driver.status().queues[0].asks_s == 6
    trainer.want(1)
    assert driver.status().queues[0].asks_s == 6, "a repeat is the same demand"
    sender.stage("k")
    assert driver.status().queues[0].asks_s == 0


def test_the_status_shows_the_offers_that_wait(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    sender.offer("k", wait_s=30)
    driver.now += 10
    [offer] = driver.status().offers
    assert (offer.key, offer.waits_s, offer.left_s, offer.payload_bytes) == ("k", 10, 20, 600)
    assert offer.sender is not None
    assert offer.sender.name == "orchestrator"


@pytest.mark.usefixtures("sender")
def test_the_status_shows_who_said_something_last(driver: Driver) -> None:
    driver.now += 3
    found = driver.status()
    heard = {peer.peer.name: peer.heard_s for peer in found.peers}
    assert (heard, found.peer_count) == ({"daemon": 0, "orchestrator": 3}, 2)


@pytest.mark.parametrize("question", [GetStatus(), GetEvents(), Peek(queue="train", key="a")])
def test_inspectors_get_no_long_answers_while_memory_is_short(question: Inspection) -> None:
    driver = Driver(slots=2, max_private_bytes=1000)
    sender = Sender(driver)
    sender.stage("a")
    driver.ledger.memory(851)
    answer = only(driver.say(INSPECTOR, question), Refused)
    assert answer.code is RefusalCode.TOO_MANY
    assert "max_private_bytes" in answer.words
    sender.stage("b")
    driver.ledger.memory(850)
    assert driver.ready() == ("a", "b"), "those who stage notice nothing"
    assert isinstance(only(driver.say(INSPECTOR, question), Message), Status | Events | Peeked)


def test_without_a_bound_memory_is_never_short() -> None:
    driver = Driver(max_private_bytes=0)
    driver.ledger.memory(1 << 40)
    only(driver.say(INSPECTOR, GetStatus()), Status)


# --- who looks raises no alarm ---


def test_a_look_at_what_is_not_there_is_neither_counted_nor_told_to_others(driver: Driver) -> None:
    before = driver.status().counters
    only(driver.say(INSPECTOR, Peek(id=3, queue="train", key="k")), Refused)
    assert driver.status().counters == before
    assert moments(driver) == ()


def test_words_of_a_refusal_are_told_whole_up_to_their_limit() -> None:
    history = History(limit=3)
    history.note(0.0, Event.REFUSE, {"words": "a" * 150 + "middle" + "z" * 150})
    [moment], _ = history.after(0, 10)
    assert "middle" in moment.words
