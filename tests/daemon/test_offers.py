"""What becomes of an offer that is taken in, and which are refused at the door."""

from __future__ import annotations

import math

import msgspec
import pytest

from forebay.wire import Granted, MicroBatchState, Offer, Reached, RefusalCode, Refused, Staged, WasReset

from .ledger_driver import LIMITS, Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers, manifest_of
from .offer_ways import too_large


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


# --- refused at the door ---


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
