"""What an offer gets: a grant, a place in the line, the answer of before, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest

from forebay.wire import Abandon, Granted, MicroBatchState, Offer, Reached, RefusalCode, Refused, Staged, WasReset

from .ledger_driver import LIMITS, Driver, Sender, Trainer, chunk_headers, manifest_of, only


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2)


# --- the whole way ---


def test_a_micro_batch_goes_its_whole_way(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    grant = sender.grant("k")
    assert (grant.attempt, grant.missing, grant.received_bytes) == ("train/k/1", ((0, 3),), 0)
    assert (driver.states(), driver.headers[grant.slot].generation) == (["FILLING", "FREE"], grant.generation)
    staged = sender.fill(grant)
    assert (staged.id, staged.state) == (grant.id, MicroBatchState.READY)
    assert (driver.states(), driver.ready()) == (["READY", "FREE"], ("k",))
    [lend] = trainer.lends(1)
    assert (lend.slot, lend.generation, lend.key, lend.on_credit) == (grant.slot, grant.generation, "k", True)
    assert (driver.states(), driver.ready(), driver.headers[grant.slot].holder) == (
        ["LENT", "FREE"],
        (),
        "holder1",
    )
    trainer.promoted(lend)
    assert (driver.states(), driver.on_device()) == (["FREE", "FREE"], ("k",))
    trainer.finished("k")
    assert (driver.states(), driver.on_device()) == (["FREE", "FREE"], ())
    assert only(sender.wait_for("k"), Reached).state is MicroBatchState.CONSUMED
    assert driver.count("published") == driver.count("finished_consumed") == 1


def test_the_token_of_each_grant_is_its_own(sender: Sender) -> None:
    assert sender.grant("a").token != sender.grant("b").token


def test_two_queues_do_not_mix(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    other = Trainer(driver, "holder2", queue="eval")
    other.attach()
    sender.stage("k", queue="eval")
    assert trainer.lends(5, "k") == []
    sender.stage("k")
    assert [lend.key for lend in trainer.heard()] == ["k"]  # type: ignore[attr-defined]
    [lend] = other.lends(1)
    assert lend.slot == 0
    trainer_slot = next(slot for slot in driver.status().slots if slot.queue == "train")
    assert (trainer_slot.index, driver.states()) == (1, ["LENT", "LENT"])


def test_the_same_key_in_two_queues_is_two_micro_batches(sender: Sender) -> None:
    sender.stage("k", "attempt", queue="train")
    only(sender.reset("train"), WasReset)
    assert only(sender.offer("k", "another", queue="eval"), Granted).slot >= 0


def test_the_order_is_that_of_publication_not_of_the_offers() -> None:
    driver = Driver(slots=3)
    sender = Sender(driver)
    grants = {key: sender.grant(key) for key in ("a", "b", "c")}
    for key in ("c", "a", "b"):
        sender.fill(grants[key])
    trainer = Trainer(driver)
    trainer.attach()
    assert driver.ready() == ("c", "a", "b")
    assert [lend.key for lend in trainer.lends(3)] == ["c", "a", "b"]


def test_spans_may_arrive_in_any_order(driver: Driver, sender: Sender) -> None:
    for header in reversed(chunk_headers(sender.grant("k"))):
        assert driver.chunk(header) is None
    assert only(sender.heard(), Staged).state is MicroBatchState.READY


def test_a_micro_batch_without_bytes_is_published_at_its_grant(driver: Driver, sender: Sender) -> None:
    granted, staged = sender.offer("k", nbytes=0)
    assert isinstance(granted, Granted)
    assert granted.missing == ()
    assert isinstance(staged, Staged)
    assert staged.state is MicroBatchState.READY
    assert driver.ready() == ("k",)


def test_a_trainer_that_waits_is_lent_a_micro_batch_without_bytes_at_its_grant(
    sender: Sender, trainer: Trainer
) -> None:
    assert trainer.lends(1) == []
    sender.offer("k", nbytes=0)
    assert [lend.key for lend in trainer.heard()] == ["k"]  # type: ignore[attr-defined]


# --- the same attempt again ---


def lent(_driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    assert len(trainer.lends(1)) == 1


def on_device(_driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    trainer.promoted(trainer.lends(1)[0])


def consumed(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    on_device(driver, sender, trainer)
    trainer.finished("k")


def lost(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    on_device(driver, sender, trainer)
    trainer.die()


def given_up_by_the_trainer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    on_device(driver, sender, trainer)
    trainer.finished("k", reason="it did not fit")


def quarantined(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    lent(driver, sender, trainer)
    trainer.detach()


def ready(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.stage("k")


def ready_then_reset(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.stage("k")
    sender.reset()


def ready_then_abandoned(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.stage("k")
    sender.abandon("k")


def filling(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.grant("k")


def filling_then_reset(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.grant("k")
    sender.reset()


def filling_then_abandoned(_driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    sender.grant("k")
    sender.abandon("k")


def waiting(driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    for index in range(len(driver.slots)):
        sender.grant(f"other{index}")
    assert sender.offer("k") == []


def waiting_then_reset(driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    other = Sender(driver, "other")
    other.grant("k1", queue="elsewhere")
    other.grant("k2", queue="elsewhere")
    assert sender.offer("k") == []
    sender.reset()


def reserving(driver: Driver, sender: Sender, _trainer: Trainer) -> None:
    assert sender.offer("k", nbytes=40_000) == []
    assert driver.growing


Way = Callable[[Driver, Sender, Trainer], None]


@pytest.mark.parametrize(
    ("way", "state"),
    [
        (ready, "ready"),
        (lent, "ready"),
        (quarantined, "ready"),
        (on_device, "on_device"),
        (consumed, "consumed"),
        (lost, "lost"),
        (given_up_by_the_trainer, "dropped"),
        (ready_then_reset, "dropped"),
        (ready_then_abandoned, "dropped"),
    ],
)
def test_a_repeat_of_what_was_staged_says_staged_and_moves_nothing(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way, state: str
) -> None:
    way(driver, sender, trainer)
    for _ in range(5):
        with driver.nothing_moves():
            assert only(sender.offer("k"), Staged).state == state
    assert driver.count("published") == 1


@pytest.mark.parametrize("way", [waiting, reserving])
def test_a_repeat_of_what_waits_is_told_so_and_moves_nothing(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    with driver.nothing_moves():
        assert only(sender.offer("k", nbytes=40_000), Reached).state is MicroBatchState.OFFERED


@pytest.mark.parametrize("way", [filling_then_reset, filling_then_abandoned, waiting_then_reset])
def test_a_repeat_of_what_was_dropped_on_its_way_is_refused_with_the_reason(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    sender.heard()
    with driver.nothing_moves():
        refused = only(sender.offer("k"), Refused)
    assert refused.code is RefusalCode.DROPPED
    assert ("reset" in refused.words) or ("abandoned" in refused.words)


def test_a_repeat_while_filling_is_told_exactly_what_is_missing(driver: Driver, sender: Sender) -> None:
    first = sender.grant("k", nbytes=256 * 8 + 10)
    headers = chunk_headers(first, 256 * 8 + 10)
    for index in (0, 3, 4, 7):
        driver.chunk(headers[index])
    with driver.nothing_moves():
        again = only(sender.offer("k", nbytes=256 * 8 + 10), Granted)
    assert again.missing == ((1, 2), (5, 2), (8, 1))
    assert again.received_bytes == 4 * 256
    assert (again.slot, again.generation, again.token) == (first.slot, first.generation, first.token)


def test_a_repeat_never_names_more_runs_than_fit_an_answer() -> None:
    driver, nbytes = Driver(slots=1), 256 * 250
    sender = Sender(driver)
    sender.offer("k", nbytes=nbytes)
    driver.grow(0)
    headers = chunk_headers(only(sender.heard(), Granted), nbytes)
    for header in headers[::2]:
        driver.chunk(header)
    again = only(sender.offer("k", nbytes=nbytes), Granted)
    assert len(again.missing) == 125
    for header in chunk_headers(again, nbytes):
        assert driver.chunk(header) is None
    assert only(sender.heard(), Staged).state is MicroBatchState.READY


def test_the_answer_goes_to_the_latest_connection_that_asked_with_its_latest_id(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    waiting(driver, sender, trainer)
    reconnected = Sender(driver, "the same orchestrator, reconnected")
    assert only(reconnected.offer("k"), Reached).state is MicroBatchState.OFFERED
    sender.abandon("other0")
    grant = only(reconnected.heard(), Granted)
    assert reconnected.fill(grant).id == grant.id
    assert sender.heard() == []


def test_a_lost_staged_answer_and_five_repeats_publish_once(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    for _ in range(5):
        assert only(sender.offer("k"), Staged).state is MicroBatchState.READY
    assert driver.ready() == ("k",)
    assert [lend.key for lend in trainer.lends(10)] == ["k"]
    assert (driver.count("published"), driver.states()) == (1, ["LENT", "FREE"])


def test_a_superseded_attempt_is_told_so_and_never_becomes_a_duplicate(driver: Driver, sender: Sender) -> None:
    sender.stage("k", "old")
    sender.stage("k", "new")
    for _ in range(5):
        with driver.nothing_moves():
            assert only(sender.offer("k", "old"), Refused).code is RefusalCode.REPLACED
    assert driver.ready() == ("k",)


def test_a_superseded_attempt_stays_so_when_its_successor_is_gone(driver: Driver, sender: Sender) -> None:
    sender.stage("k", "old")
    sender.stage("k", "new")
    sender.reset()
    with driver.nothing_moves():
        assert only(sender.offer("k", "old"), Refused).code is RefusalCode.REPLACED


def test_an_attempt_name_that_was_superseded_for_one_key_is_free_for_another(sender: Sender) -> None:
    sender.stage("a", "1")
    sender.stage("a", "2")
    assert only(sender.offer("b", "1"), Granted).attempt == "1"


# --- another attempt for the same key ---


@pytest.mark.parametrize("way", [lent, quarantined, on_device])
def test_another_attempt_is_refused_while_the_trainer_holds_the_key(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    with driver.nothing_moves():
        assert only(sender.offer("k", "another"), Refused).code is RefusalCode.IN_USE


def test_another_attempt_is_refused_for_ever_once_the_key_was_trained(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    consumed(driver, sender, trainer)
    for attempt in ("another", "a third"):
        with driver.nothing_moves():
            assert only(sender.offer("k", attempt), Refused).code is RefusalCode.CONSUMED


@pytest.mark.parametrize(
    "way",
    [
        lost,
        given_up_by_the_trainer,
        ready_then_reset,
        ready_then_abandoned,
        filling_then_reset,
        filling_then_abandoned,
    ],
)
def test_another_attempt_is_admitted_anew_once_the_first_is_gone(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    sender.heard()
    sender.stage("k", "another")
    assert driver.ready() == ("k",)


@pytest.mark.parametrize("way", [ready, filling])
def test_another_attempt_takes_the_place_of_one_that_the_trainer_has_not(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    other = Sender(driver, "other")
    grant = other.grant("k", "another")
    told = sender.heard()
    assert [message.code for message in told if isinstance(message, Refused)] == (
        [RefusalCode.REPLACED] if way is filling else []
    )
    other.fill(grant)
    assert (driver.ready(), sorted(driver.states())) == (("k",), ["FREE", "READY"])


@pytest.mark.parametrize("way", [waiting, reserving])
def test_another_attempt_takes_the_place_of_one_that_waits(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way
) -> None:
    way(driver, sender, trainer)
    other = Sender(driver, "other")
    other.offer("k", "another")
    assert only(sender.heard(), Refused).code is RefusalCode.REPLACED
    assert driver.status().waiting_offers == (way is waiting)


def test_a_replaced_entry_keeps_its_place_in_the_queue() -> None:
    driver = Driver(slots=4)
    sender = Sender(driver)
    for key in ("a", "b", "c"):
        sender.stage(key)
    grant = sender.grant("b", "another")
    assert driver.ready() == ("a", "c")
    sender.fill(grant)
    assert driver.ready() == ("a", "b", "c")


def test_an_entry_that_was_replaced_twice_keeps_its_place_in_the_queue() -> None:
    driver = Driver(slots=4)
    sender = Sender(driver)
    for key in ("a", "b"):
        sender.stage(key)
    Sender(driver, "other").grant("a", "second")
    sender.stage("a", "third")
    assert driver.ready() == ("a", "b")


def test_a_replaced_offer_keeps_its_place_in_the_line(sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    for key in ("first", "second"):
        assert sender.offer(key) == []
    assert [type(message) for message in sender.offer("first", "another")] == [Refused]
    told = sender.abandon("x")
    assert [message.attempt for message in told if isinstance(message, Granted)] == ["another"]


def test_a_replacement_gets_the_slot_that_it_frees_before_those_who_wait(driver: Driver, sender: Sender) -> None:
    sender.stage("x")
    sender.stage("y")
    assert sender.offer("waits") == []
    grant = only(sender.offer("x", "another", wait_s=0.0), Granted)
    sender.fill(grant)
    assert driver.ready() == ("x", "y")


def test_chunks_for_a_replaced_attempt_are_thrown_away(driver: Driver, sender: Sender) -> None:
    old = sender.grant("k", "old")
    new = next(message for message in sender.offer("k", "new") if isinstance(message, Granted))
    with driver.nothing_moves():
        for header in chunk_headers(old):
            assert driver.chunk(header) is not None
    for header in chunk_headers(new):
        assert driver.chunk(header) is None
    assert driver.count("published") == 1


@pytest.mark.parametrize("way", [ready, filling])
@pytest.mark.parametrize("fault", ["manifest", "too large", "wait_s", "attempt", "draining"])
def test_a_replacement_that_is_refused_leaves_what_it_would_have_replaced(
    driver: Driver, sender: Sender, trainer: Trainer, way: Way, fault: str
) -> None:
    way(driver, sender, trainer)
    if fault == "draining":
        driver.perform(driver.ledger.drain(driver.now))
    with driver.nothing_moves():
        refused = sender.offer(
            "k",
            "another" if fault != "attempt" else "a" * 65,
            manifest=b"garbage" if fault == "manifest" else too_large() if fault == "too large" else None,
            wait_s=-1.0 if fault == "wait_s" else 30.0,
        )
    only(refused, Refused)


# --- waiting for a slot ---


def test_offers_wait_for_a_slot_in_their_order(driver: Driver, sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    for key in ("a", "b", "c"):
        assert sender.offer(key) == []
    granted = []
    for key in ("x", "y"):
        messages = sender.abandon(key)
        granted += [message.attempt for message in messages if isinstance(message, Granted)]
    assert granted == ["train/a/1", "train/b/1"]
    assert driver.status().waiting_offers == 1


def test_a_slot_that_the_trainer_releases_goes_to_whoever_waits(sender: Sender, trainer: Trainer) -> None:
    sender.stage("x")
    sender.stage("y")
    assert sender.offer("a") == []
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Granted).attempt == "train/a/1"


def test_an_offer_that_waited_too_long_is_refused_with_who_holds_the_slots_and_for_how_long(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("x")
    trainer.lends(1)
    driver.pass_time(5.0)
    sender.stage("y")
    assert sender.offer("a", wait_s=30.0) == []
    driver.pass_time(29.0)
    assert sender.heard() == []
    driver.pass_time(1.0)
    refused = only(sender.heard(), Refused)
    assert refused.code is RefusalCode.NO_SLOT
    for word in ("'a'", "slot 0 LENT 'x' for 35.0 s", "slot 1 READY 'y' for 30.0 s"):
        assert word in refused.words
    for word in ("trainer-holder1", "pid 4711", "gpu-host"):
        assert word in refused.words, "a slow trainer must be named"
    assert driver.status().waiting_offers == 0
    assert driver.states() == ["LENT", "READY"]


def test_an_offer_that_does_not_wait_is_refused_at_once(driver: Driver, sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    with driver.nothing_moves():
        assert only(sender.offer("a", wait_s=0.0), Refused).code is RefusalCode.NO_SLOT


def test_an_offer_that_does_not_wait_is_granted_a_free_slot(sender: Sender) -> None:
    assert only(sender.offer("a", wait_s=0.0), Granted).slot == 0


def test_the_repeat_of_a_refused_offer_is_refused_too_and_takes_no_slot(driver: Driver, sender: Sender) -> None:
    sender.grant("x")
    sender.grant("y")
    refused = only(sender.offer("a", wait_s=0.0), Refused)
    assert refused.code is RefusalCode.NO_SLOT
    sender.abandon("x")
    with driver.nothing_moves():
        repeated = only(sender.offer("a", wait_s=0.0), Refused)
    assert (repeated.code, repeated.words) == (refused.code, refused.words)
    assert only(sender.offer("a", "another", wait_s=0.0), Granted).attempt == "another"


def test_no_more_offers_wait_than_may() -> None:
    driver = Driver(slots=1, max_waiting_offers=2)
    sender = Sender(driver)
    sender.grant("x")
    assert sender.offer("a") == sender.offer("b") == []
    with driver.nothing_moves():
        refused = only(sender.offer("c"), Refused)
    assert refused.code is RefusalCode.TOO_MANY_OFFERS
    assert "2" in refused.words
    assert only(sender.offer("b", "another"), Refused).code is RefusalCode.REPLACED, "that is the one before it"
    assert driver.status().waiting_offers == 2


# --- refused at the door ---


def too_large() -> bytes:
    roomy = msgspec.structs.replace(LIMITS, max_micro_batch_bytes=1 << 30)
    return manifest_of(LIMITS.max_micro_batch_bytes + 1, roomy)


@pytest.mark.parametrize("wait_s", [math.nan, -0.001, -math.inf, math.inf, 86_401.0])
def test_an_impossible_wait_is_refused(driver: Driver, sender: Sender, wait_s: float) -> None:
    with driver.nothing_moves():
        refused = only(sender.offer("k", wait_s=wait_s), Refused)
    assert refused.code is RefusalCode.BAD_REQUEST
    assert "wait_s 0 to 86400" in refused.words


@pytest.mark.parametrize("name", ["", "x" * 65, "é" * 33])
@pytest.mark.parametrize("field", ["key", "attempt", "queue"])
def test_an_empty_or_over_long_name_is_refused(driver: Driver, sender: Sender, field: str, name: str) -> None:
    good = Offer(id=driver.new_id(), queue="q", key="k", attempt="a", manifest=manifest_of(10), wait_s=1.0)
    with driver.nothing_moves():
        refused = only(sender.say(msgspec.structs.replace(good, **{field: name})), Refused)
    assert refused.code is RefusalCode.BAD_REQUEST
    assert "1 to 64 bytes" in refused.words


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (b"", RefusalCode.BAD_MANIFEST),
        (b"\xff" * 100, RefusalCode.BAD_MANIFEST),
        (b"x" * 5000, RefusalCode.BAD_MANIFEST),
        (manifest_of(600)[:-1], RefusalCode.BAD_MANIFEST),
        (too_large(), RefusalCode.TOO_LARGE),
    ],
)
def test_a_bad_manifest_is_refused_before_a_slot_is_taken(
    driver: Driver, sender: Sender, manifest: bytes, code: RefusalCode
) -> None:
    with driver.nothing_moves():
        refused = only(sender.offer("k", manifest=manifest), Refused)
    assert refused.code is code
    assert driver.count(f"refused_{code}") == 1


def test_the_largest_micro_batch_that_is_allowed_passes(driver: Driver, sender: Sender) -> None:
    assert sender.offer("k", nbytes=LIMITS.max_micro_batch_bytes) == []
    driver.grow(0)
    only(sender.heard(), Granted)


def test_every_refusal_is_counted_by_its_code(driver: Driver, sender: Sender) -> None:
    for _ in range(3):
        sender.offer("k", manifest=b"garbage")
    sender.offer("k", wait_s=-1.0)
    assert (driver.count("refused_bad_manifest"), driver.count("refused_bad_request")) == (3, 1)


def test_a_peer_that_never_said_hello_is_told_to_and_nothing_moves(driver: Driver) -> None:
    stranger = Sender(driver, "stranger", hello=False)
    with driver.nothing_moves():
        for _ in range(2):
            assert only(stranger.offer("k"), Refused).code is RefusalCode.HELLO_FIRST
            assert only(stranger.reset(), Refused).code is RefusalCode.HELLO_FIRST
            assert only(stranger.wait_for("k"), Refused).code is RefusalCode.HELLO_FIRST
            assert only(stranger.abandon("k"), Refused).code is RefusalCode.HELLO_FIRST
    stranger.say_hello()
    assert only(stranger.offer("k"), Granted).slot == 0


def test_abandon_of_an_unknown_attempt_is_refused(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    with driver.nothing_moves():
        for key, attempt in (("k", "another"), ("unknown", "train/k/1")):
            request = Abandon(id=driver.new_id(), queue="train", key=key, attempt=attempt)
            assert only(sender.say(request), Refused).code is RefusalCode.UNKNOWN_KEY
