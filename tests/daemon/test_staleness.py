"""What is stale never comes to a trainer's device, costs nobody else anything, and is told to whoever asks."""

from __future__ import annotations

import msgspec
import pytest

from forebay.daemon.actions import Log
from forebay.wire import (
    Advanced,
    Gone,
    Granted,
    Lend,
    MicroBatchState,
    RefusalCode,
    Refused,
    Staged,
)

from .eager_driver import EagerDriver, offer_eagerly
from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers

AGE_S = 100.0


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2, max_versions_behind=2, max_age_s=AGE_S, fill_lease_s=1000.0, await_lease_s=1000.0)


def stale_logs(driver: Driver) -> list[Log]:
    return [log for log in driver.logs if log.event == "stale"]


# --- offers that are stale when they come ---


@pytest.mark.parametrize(
    ("freshness", "count", "words"),
    [
        ({"version": 4}, "version", "policy version 4 is 3 behind 7, limit 2"),
        ({"expires_s": 3.0, "age_s": 3.0}, "expired", "its time was over 0.0 s ago, it is 3.0 s old"),
        ({"expires_s": -1.0}, "expired", "its time was over 1.0 s ago"),
        ({"age_s": AGE_S}, "age", "it is 100.0 s old, limit 100 s"),
    ],
)
def test_an_offer_that_is_stale_already_is_refused_before_a_slot_is_taken(
    driver: Driver, sender: Sender, freshness: dict[str, float], count: str, words: str
) -> None:
    sender.advance(7)
    for _ in range(2):  # and its repeat
        with driver.nothing_moves():
            refused = only(sender.offer("k", **freshness), Refused)  # type: ignore[arg-type]
        assert refused.code is RefusalCode.STALE
        assert words in refused.words
    assert driver.count(f"offered_stale_{count}") == driver.count("refused_stale") == 2
    fields = stale_logs(driver)[0].fields
    assert (fields["key"], fields["current_version"]) == ("k", 7)
    assert {"policy_version", "age_s"} <= fields.keys()


def test_as_many_versions_behind_as_may_be_are_taken_in(sender: Sender, trainer: Trainer) -> None:
    sender.advance(7)
    sender.stage("k", version=5)
    assert [lend.key for lend in trainer.lends(1)] == ["k"]


def test_without_limits_nothing_but_an_own_expiry_makes_stale(sender: Sender) -> None:
    driver = Driver(slots=2)
    sender = Sender(driver)
    sender.stage("old", version=0)
    sender.stage("new", version=1 << 62)
    driver.pass_time(1e8)
    assert driver.ready() == ("old", "new")
    assert driver.ledger.next_deadline() is None


def test_who_says_no_version_is_behind_none(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    sender.advance(1000)
    assert driver.ready() == ("k",)


@pytest.mark.parametrize(
    "freshness",
    [
        {"version": -1},
        {"version": 1 << 63},
        {"age_s": -1.0},
        {"age_s": float("nan")},
        {"expires_s": float("nan")},
        {"expires_s": float("inf")},
    ],
)
def test_a_version_or_an_age_that_is_none_is_refused(
    driver: Driver, sender: Sender, freshness: dict[str, float]
) -> None:
    with driver.nothing_moves():
        assert only(sender.offer("k", **freshness), Refused).code is RefusalCode.BAD_REQUEST  # type: ignore[arg-type]
    for version in (-1, 1 << 63):
        with driver.nothing_moves():
            assert only(sender.advance(version), Refused).code is RefusalCode.BAD_REQUEST


# --- what becomes stale while it waits ---


def test_a_ready_one_is_dropped_at_its_expiry_and_the_next_offer_has_its_slot(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=5.0)
    sender.stage("b")
    sender.offer("c")
    assert not sender.wait_for("a", id=77)
    due = driver.ledger.next_deadline()
    assert due == driver.now + 5.0
    driver.pass_time(4.9)
    assert driver.ready() == ("a", "b")
    driver.pass_time(0.2)
    assert driver.ready() == ("b",)
    gone, grant = sender.heard()
    assert isinstance(gone, Gone)
    assert (gone.id, gone.state, gone.stale) == (77, MicroBatchState.DROPPED, True)
    assert gone.reason.startswith("stale: its time was over 0.1 s ago, it is 5.1 s old")
    assert isinstance(grant, Granted)
    sender.fill(grant)
    assert [lend.key for lend in trainer.lends(5)] == ["b", "c"]
    assert driver.count("dropped_stale_expired") == driver.count("finished_dropped") == 1
    assert only(sender.offer("a", expires_s=5.0), Staged).state is MicroBatchState.DROPPED
    assert only(sender.wait_for("a", id=78), Gone) == msgspec.structs.replace(gone, id=78)


def test_an_age_counts_from_the_stage_calls_beginning(driver: Driver, sender: Sender) -> None:
    sender.stage("a", age_s=AGE_S - 1)
    sender.stage("b", expires_s=AGE_S * 5)
    driver.pass_time(1.0)
    assert driver.ready() == ("b",)
    driver.pass_time(AGE_S - 1)
    assert driver.ready() == ()
    assert driver.count("dropped_stale_age") == 2
    assert driver.ledger.next_deadline() is None


@pytest.mark.parametrize("told_by", ["an offer", "advance"])
def test_what_is_too_many_versions_behind_is_dropped_at_once_and_the_rest_keeps_its_order(
    sender: Sender, told_by: str
) -> None:
    driver = Driver(slots=5, max_versions_behind=2)
    sender = Sender(driver)
    trainer = Trainer(driver)
    trainer.attach()
    for key, version in (("a", 1), ("b", 3), ("c", None), ("d", 2)):
        sender.stage(key, version=version)
    if told_by == "advance":
        assert only(sender.advance(5), Advanced).policy_version == 5
    else:
        sender.stage("e", version=5)
        sender.abandon("e")
    assert driver.ready() == ("b", "c")
    assert driver.states().count("FREE") == 3
    assert [lend.key for lend in trainer.lends(9)] == ["b", "c"]
    assert driver.count("dropped_stale_version") == 2
    fields = stale_logs(driver)[0].fields
    assert fields == {"queue": "train", "key": "a", "policy_version": 1, "current_version": 5, "age_s": 0.0}


def test_a_smaller_version_is_no_news(driver: Driver, sender: Sender) -> None:
    sender.advance(7)
    sender.stage("k", version=6)
    with driver.nothing_moves():
        assert only(sender.advance(3), Advanced).policy_version == 7
    sender.stage("j", version=5)
    assert driver.ready() == ("k", "j")


def test_a_queues_version_is_its_own(driver: Driver, sender: Sender) -> None:
    sender.stage("k", version=1, queue="eval")
    sender.advance(100)
    assert driver.ready("eval") == ("k",)
    assert [queue.policy_version for queue in driver.status().queues] == [1, 100]


def test_a_reset_forgets_the_version_so_that_an_older_policy_may_come_again(
    driver: Driver, sender: Sender
) -> None:
    sender.advance(100)
    assert only(sender.offer("k", version=3), Refused).code is RefusalCode.STALE
    sender.reset()
    sender.stage("k", version=3)
    assert driver.ready() == ("k",)


@pytest.mark.parametrize("why", ["expiry", "version"])
def test_one_that_waits_for_a_slot_is_refused_and_so_is_its_repeat(
    driver: Driver, sender: Sender, why: str
) -> None:
    sender.stage("a")
    sender.stage("b")
    assert not sender.offer("c", wait_s=500.0, version=1, expires_s=5.0)
    assert not sender.offer("d", wait_s=500.0)
    if why == "expiry":
        driver.pass_time(5.0)
        refused = only(sender.heard(), Refused)
    else:
        refused, _ = sender.advance(4)  # type: ignore[assignment]
    assert (refused.code, driver.status().waiting_offers) == (RefusalCode.STALE, 1)
    repeat = only(sender.offer("c", wait_s=500.0, version=1, expires_s=5.0), Refused)
    assert (repeat.code, repeat.words) == (refused.code, refused.words)
    sender.abandon("a")
    assert driver.states().count("FILLING") == 1
    assert only(sender.offer("d"), Granted).attempt == "train/d/1"


@pytest.mark.parametrize("why", ["expiry", "version"])
def test_one_that_fills_is_dropped_and_what_still_comes_is_thrown_away(
    driver: Driver, sender: Sender, why: str
) -> None:
    grant = sender.grant("a", version=1, expires_s=5.0)
    first, *rest = chunk_headers(grant)
    assert driver.chunk(first) is None
    if why == "expiry":
        driver.pass_time(5.0)
        refused = only(sender.heard(), Refused)
    else:
        refused, _ = sender.advance(4)  # type: ignore[assignment]
    assert refused.code is RefusalCode.STALE
    assert driver.states() == ["FREE", "FREE"]
    assert all(driver.chunk(header) is not None for header in rest)
    assert only(sender.offer("a", version=1, expires_s=5.0), Refused).code is RefusalCode.STALE
    sender.stage("a", "another attempt")
    assert driver.ready() == ("a",)


def test_one_that_is_complete_after_its_expiry_and_before_the_tick_is_not_lent(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    assert trainer.lends(5) == []
    grant = sender.grant("a", expires_s=5.0)
    sender.stage("b")
    assert [message.key for message in trainer.heard() if isinstance(message, Lend)] == ["b"]
    driver.now += 5.0
    sender.fill(grant)
    assert trainer.heard() == []
    assert trainer.lends(6) == []
    driver.pass_time(0.0)
    assert driver.ready() == ()
    assert driver.states() == ["FREE", "LENT"]


def test_a_small_one_that_comes_with_its_offer_and_waits_is_dropped_like_all() -> None:
    driver = EagerDriver()
    sender = Sender(driver)
    sender.stage("a")
    sender.stage("b")
    assert not offer_eagerly(driver, sender, "c", expires_s=5.0)
    driver.pass_time(5.0)
    assert only(sender.heard(), Refused).code is RefusalCode.STALE
    sender.abandon("a")
    assert driver.ready() == ("b",)


def test_a_newer_attempt_has_the_place_of_the_stale_one_that_it_replaces(driver: Driver, sender: Sender) -> None:
    sender.stage("a", version=1)
    sender.stage("b", version=3)
    grant = only(sender.offer("a", "newer", version=4), Granted)
    sender.fill(grant)
    assert driver.ready() == ("a", "b")
    assert driver.count("dropped_stale_version") == 0


def test_a_stale_attempt_replaces_nothing(driver: Driver, sender: Sender) -> None:
    sender.stage("a", version=9)
    with driver.nothing_moves():
        assert only(sender.offer("a", "older", version=1), Refused).code is RefusalCode.STALE
