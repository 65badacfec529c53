"""What is stale never comes to a trainer's device, costs nobody else anything, and is told to whoever asks."""

from __future__ import annotations

import msgspec
import pytest

from forebay.daemon.actions import Log
from forebay.wire import (
    Advanced,
    Attached,
    Done,
    Gone,
    Granted,
    KeyGone,
    Lend,
    MicroBatchState,
    Reached,
    RefusalCode,
    Refused,
    Staged,
    Stale,
)

from .eager_driver import EagerDriver, offer_eagerly
from .ledger_driver import Driver, Sender, Trainer, chunk_headers, only

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


# --- what is lent ---


def test_a_lend_tells_for_how_long_its_transfer_may_begin(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=30.0)
    sender.stage("b", expires_s=500.0)
    driver.pass_time(10.0)
    assert [lend.expires_s for lend in trainer.lends(2)] == [20.0, AGE_S - 10.0]


def test_without_an_end_a_lend_tells_of_none() -> None:
    driver = Driver()
    trainer = Trainer(driver)
    trainer.attach()
    Sender(driver).stage("a")
    assert only(trainer.want(1), Lend).expires_s is None


@pytest.mark.parametrize("why", ["expiry", "version"])
def test_a_lent_ones_trainer_is_told_once_and_its_answer_frees_the_slot(
    driver: Driver, sender: Sender, trainer: Trainer, why: str
) -> None:
    sender.stage("a", version=1, expires_s=5.0)
    sender.stage("b", version=4)
    assert driver.ready() == ("b",), "a is 3 behind"
    sender.reset()
    sender.stage("c", version=1, expires_s=5.0)
    (lend,) = trainer.lends(1)
    assert not sender.wait_for("c")
    if why == "expiry":
        driver.pass_time(5.0)
    else:
        sender.advance(4)
    stale = only(trainer.heard(), Stale)
    assert (stale.slot, stale.generation) == (lend.slot, lend.generation)
    assert driver.states().count("LENT") == 1, "the trainer reads it"
    if why == "expiry":
        driver.pass_time(1.0)
    else:
        sender.advance(5)
    assert trainer.heard() == []
    assert driver.states().count("LENT") == 1
    only(trainer.finished("c", lend=lend, reason=stale.reason, stale=True), Done)
    gone = only(sender.heard(), Gone)
    assert (gone.reason, gone.stale) == (stale.reason, True)
    assert driver.states() == ["FREE", "FREE"]
    count = "expired" if why == "expiry" else "version"
    before = 0 if why == "expiry" else 1
    assert driver.count(f"dropped_stale_{count}") == 1 + before
    (notice,) = trainer.want(1, "c")
    assert isinstance(notice, KeyGone)
    assert (notice.stale, notice.reason) == (True, stale.reason)


def test_what_is_on_the_device_is_trained_however_old(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a", version=1, expires_s=5.0)
    (lend,) = trainer.lends(1)
    only(trainer.promoted(lend), Done)
    driver.pass_time(1000.0)
    sender.advance(50)
    assert trainer.heard() == []
    only(trainer.finished("a"), Done)
    assert only(sender.wait_for("a"), Reached).state is MicroBatchState.CONSUMED


def test_a_transfer_that_had_begun_when_it_became_stale_counts(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=5.0)
    (lend,) = trainer.lends(1)
    driver.pass_time(5.0)
    only(trainer.heard(), Stale)
    only(trainer.promoted(lend), Done)
    assert driver.on_device() == ("a",)
    assert driver.count("dropped_stale_expired") == 0


def test_a_dead_trainers_stale_slots_are_dropped_and_not_lent_to_the_next(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", version=1)
    sender.stage("b", version=3)
    trainer.lends(2)
    sender.advance(4)
    trainer.die()
    assert driver.ready() == ("b",)
    heir = Trainer(driver, "holder2")
    heir.attach()
    assert [lend.key for lend in heir.lends(5)] == ["b"]


def test_a_detached_trainers_stale_slots_wait_until_nobody_reads_them(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=5.0)
    trainer.lends(1)
    trainer.detach()
    driver.pass_time(6.0)
    assert driver.states() == ["QUARANTINED", "FREE"]
    trainer.die()
    assert driver.states() == ["FREE", "FREE"]


def test_a_trainer_that_attaches_again_is_told_again(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("a", expires_s=5.0)
    (lend,) = trainer.lends(1)
    driver.pass_time(5.0)
    only(trainer.heard(), Stale)
    attached, stale = trainer.attach(held=[(lend.slot, lend.generation)])
    assert isinstance(attached, Attached)
    assert isinstance(stale, Stale)
    attached, again, stale = trainer.attach()
    assert isinstance(again, Lend)
    assert again.expires_s == 0.0, "its transfer may not begin even if the notice is late"
    assert isinstance(stale, Stale)


# --- a restart ---


def test_a_restarted_daemon_knows_expiries_ages_and_what_versions_the_slots_tell(
    driver: Driver, sender: Sender
) -> None:
    sender.stage("a", version=3, expires_s=50.0)
    sender.stage("b", version=4, age_s=40.0)
    driver.restart()
    assert driver.ready() == ("a", "b")
    rows = [(row.policy_version, row.stale_in_s, row.offered_s) for row in driver.status().slots]
    assert rows == [(3, 50.0, 0.0), (4, 60.0, 40.0)]
    sender.say_hello()
    assert only(sender.offer("c", version=1), Refused).code is RefusalCode.STALE
    driver.pass_time(50.0)
    assert driver.ready() == ("b",)
    driver.pass_time(10.0)
    assert driver.ready() == ()


def test_what_became_stale_while_no_daemon_was_there_is_dropped_by_the_next(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", expires_s=50.0)
    (lend,) = trainer.lends(1)
    sender.stage("b", expires_s=50.0)
    driver.now += 60.0
    driver.restart()
    assert driver.states() == ["LENT", "FREE"]
    assert driver.ledger.next_deadline() is None, "its trainer cannot be told yet"
    _, stale = trainer.attach(held=[(lend.slot, lend.generation)])
    assert isinstance(stale, Stale)
    sender.say_hello()
    assert only(sender.wait_for("b"), Gone).stale


def test_other_limits_after_a_restart_hold_for_what_was_staged_before(driver: Driver, sender: Sender) -> None:
    sender.stage("a", version=3)
    sender.stage("b", version=4)
    driver.settings = Driver(max_versions_behind=0).settings
    driver.restart()
    assert driver.ready() == ("b",)


def test_what_was_told_of_a_stale_one_is_told_by_the_next_daemon_too(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("lent", expires_s=5.0)
    (lent,) = trainer.lends(1)
    sender.stage("ready")
    assert not sender.offer("waits", wait_s=500.0, expires_s=5.0)
    driver.pass_time(5.0)
    refused = only(sender.heard(), Refused)
    trainer.finished("lent", lend=lent, reason="stale: said so", stale=True)
    driver.restart()
    sender.say_hello()
    repeat = only(sender.offer("waits", wait_s=500.0, expires_s=5.0), Refused)
    assert (repeat.code, repeat.words) == (RefusalCode.STALE, refused.words)
    gone = only(sender.wait_for("lent"), Gone)
    assert (gone.stale, gone.reason) == (True, "stale: said so")


def test_a_version_that_a_reset_forgot_does_not_come_back_with_what_was_lent_then(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("a", version=100)
    trainer.lends(1)
    sender.reset()
    driver.restart()
    sender.say_hello()
    sender.stage("b", version=3)
    assert driver.ready() == ("b",)


def test_one_that_was_told_stale_and_lent_anew_after_a_reset_is_told_again(driver: Driver, sender: Sender) -> None:
    trainer = Trainer(driver)
    trainer.attach()
    grant = sender.grant("a", version=1)
    sender.fill(grant)
    trainer.lends(1)
    sender.advance(9)
    only(trainer.heard(), Stale)
    driver.restart()
    trainer.die()
    sender.say_hello()
    heir = Trainer(driver, "holder2")
    heir.attach()
    assert [lend.key for lend in heir.lends(1)] == ["a"], "the slots tell of no version but its own"
    sender.advance(9)
    only(heir.heard(), Stale)
