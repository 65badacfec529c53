"""Which chunks may be written to a slot, and how long a slot waits for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from forebay.wire import ChunkFault, ChunkHeader, Granted, Staged

from .ledger_driver import Driver, only
from .ledger_peers import Sender, Trainer, chunk_headers

Change = Callable[[ChunkHeader], ChunkHeader]
LEASE_S = 10.0


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=2, fill_lease_s=LEASE_S)


def replace(**changes: Callable[[ChunkHeader], int]) -> Change:
    return lambda header: dataclasses.replace(header, **{name: to(header) for name, to in changes.items()})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (replace(token=lambda header: header.token ^ 1), ChunkFault.NOT_GRANTED),
        (replace(token=lambda _: 0), ChunkFault.NOT_GRANTED),
        (replace(generation=lambda header: header.generation - 1), ChunkFault.NOT_GRANTED),
        (replace(generation=lambda header: header.generation + 1), ChunkFault.NOT_GRANTED),
        (replace(slot=lambda _: 1), ChunkFault.NOT_GRANTED),
        (replace(slot=lambda _: 2), ChunkFault.NOT_GRANTED),
        (replace(slot=lambda _: (1 << 32) - 1), ChunkFault.NOT_GRANTED),
        (replace(span=lambda _: 1), ChunkFault.WRONG_SPAN),
        (replace(span=lambda _: 3), ChunkFault.WRONG_SPAN),
        (replace(span=lambda _: (1 << 32) - 1), ChunkFault.WRONG_SPAN),
        (replace(offset=lambda header: header.offset + 1), ChunkFault.WRONG_SPAN),
        (replace(offset=lambda _: (1 << 64) - 1), ChunkFault.WRONG_SPAN),
        (replace(length=lambda header: header.length - 1), ChunkFault.WRONG_SPAN),
        (replace(length=lambda header: header.length + 1), ChunkFault.WRONG_SPAN),
        (replace(length=lambda _: 0), ChunkFault.WRONG_SPAN),
        (replace(length=lambda _: 600, offset=lambda _: 0), ChunkFault.WRONG_SPAN),
    ],
)
def test_a_chunk_that_is_not_exactly_what_was_granted_is_thrown_away(
    driver: Driver, sender: Sender, change: Change, fault: ChunkFault
) -> None:
    first, *rest = chunk_headers(sender.grant("k"))
    with driver.nothing_moves():
        assert driver.chunk(change(first)) is fault
    assert driver.count(fault) == 1
    for header in (first, *rest):
        assert driver.chunk(header) is None
    only(sender.heard(), Staged)


def test_a_chunk_that_comes_again_is_thrown_away(driver: Driver, sender: Sender) -> None:
    first, *rest = chunk_headers(sender.grant("k"))
    assert driver.chunk(first) is None
    with driver.nothing_moves():
        for _ in range(3):
            assert driver.chunk(first) is ChunkFault.REPEATED
    assert only(sender.offer("k"), Granted).received_bytes == first.length
    for header in rest:
        assert driver.chunk(header) is None
    assert driver.ready() == ("k",)


def test_a_chunk_with_a_good_header_and_bad_bytes_is_still_missing(driver: Driver, sender: Sender) -> None:
    first, *_ = chunk_headers(sender.grant("k"))
    with driver.nothing_moves():
        assert driver.settle(first, ChunkFault.WRONG_CHECKSUM) is ChunkFault.WRONG_CHECKSUM
    assert driver.count("chunk_wrong_checksum") == 1
    assert driver.chunk(first) is None


def published(_driver: Driver, sender: Sender, grant: Granted) -> None:
    sender.fill(grant)


def lent(driver: Driver, sender: Sender, grant: Granted) -> None:
    trainer = Trainer(driver)
    trainer.attach()
    sender.fill(grant)
    trainer.want(1)


def abandoned(_driver: Driver, sender: Sender, _grant: Granted) -> None:
    sender.abandon("k")


def was_reset(_driver: Driver, sender: Sender, _grant: Granted) -> None:
    sender.reset()


def silent(driver: Driver, _sender: Sender, _grant: Granted) -> None:
    driver.pass_time(LEASE_S)


def loaned_again(_driver: Driver, sender: Sender, grant: Granted) -> None:
    sender.abandon("k")
    assert sender.grant("l").slot == grant.slot


def restarted(driver: Driver, _sender: Sender, _grant: Granted) -> None:
    driver.restart()


@pytest.mark.parametrize("end", [published, lent, abandoned, was_reset, silent, loaned_again, restarted])
def test_a_chunk_that_comes_when_its_grant_is_over_is_thrown_away(
    driver: Driver, sender: Sender, end: Callable[[Driver, Sender, Granted], None]
) -> None:
    grant = sender.grant("k")
    end(driver, sender, grant)
    with driver.nothing_moves():
        for header in chunk_headers(grant):
            assert driver.chunk(header) is ChunkFault.NOT_GRANTED
    assert driver.count("chunk_not_granted") == 3


def test_a_chunk_for_a_slot_that_was_never_granted_is_thrown_away(driver: Driver) -> None:
    header = ChunkHeader(slot=0, span=0, length=256, generation=0, token=0, offset=0, checksum=0)
    with driver.nothing_moves():
        assert driver.chunk(header) is ChunkFault.NOT_GRANTED


# --- the lease ---


def test_a_slot_whose_sender_is_silent_is_taken_back(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    driver.pass_time(LEASE_S - 0.01)
    assert driver.states() == ["FILLING", "FREE"]
    driver.pass_time(0.01)
    assert driver.states() == ["FREE", "FREE"]
    assert driver.ledger.next_deadline() is None


def test_a_slot_that_was_taken_back_goes_to_whoever_waits(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    sender.grant("l")
    assert sender.offer("m") == []
    driver.pass_time(LEASE_S)
    assert only(sender.heard(), Granted).attempt == "train/m/1"


def test_a_good_chunk_renews_the_lease_and_a_bad_one_does_not(driver: Driver, sender: Sender) -> None:
    first, second, _ = chunk_headers(sender.grant("k"))
    driver.pass_time(LEASE_S - 1)
    driver.chunk(first)
    driver.pass_time(LEASE_S - 1)
    driver.chunk(second)
    driver.pass_time(LEASE_S - 1)
    assert driver.states() == ["FILLING", "FREE"]
    driver.chunk(dataclasses.replace(second, token=0))
    driver.chunk(second)
    driver.pass_time(1)
    assert driver.states() == ["FREE", "FREE"]


def test_a_repeated_offer_renews_the_lease(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    for _ in range(5):
        driver.pass_time(LEASE_S - 1)
        assert only(sender.offer("k"), Granted).generation == 1
    assert driver.states() == ["FILLING", "FREE"]


def test_the_same_attempt_is_granted_anew_after_its_lease_ended(driver: Driver, sender: Sender) -> None:
    old = sender.grant("k")
    driver.chunk(chunk_headers(old)[0])
    driver.pass_time(LEASE_S)
    new = only(sender.offer("k"), Granted)
    assert (new.missing, new.received_bytes) == (((0, 3),), 0)
    assert (new.slot, new.generation) != (old.slot, old.generation)
    sender.fill(new)
    assert driver.ready() == ("k",)
    assert driver.count("published") == 1


def test_an_offer_that_waits_or_whose_slot_grows_has_no_lease_to_lose(driver: Driver, sender: Sender) -> None:
    assert sender.offer("k", nbytes=40_000, wait_s=1.0) == []
    driver.pass_time(100 * LEASE_S)
    assert driver.states() == ["FILLING", "FREE"]
    driver.grow(0)
    only(sender.heard(), Granted)


def test_what_is_published_has_no_lease(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    driver.pass_time(1_000_000.0)
    assert driver.ready() == ("k",)
