"""A slot that somebody may still write to is loaned again only behind a wait for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.daemon.actions import Action, AwaitWriters, WriteBody, WriteLoan, WriteState
from forebay.shm import SlotState
from forebay.wire import Abandon, Arrivals, ChunkHeader, Granted, Staged

from .eager_driver import EagerDriver, body_of, offer_eagerly
from .ledger_driver import only
from .ledger_peers import Sender, Trainer, chunk_headers

LEASE_S = 10.0


@pytest.fixture
def driver() -> EagerDriver:
    return EagerDriver(slots=1, fill_lease_s=LEASE_S)


def on_slot(driver: EagerDriver) -> list[Action]:
    """Returns what was done to slots, or waited for, since the test last looked."""
    kinds = (AwaitWriters, WriteLoan, WriteBody, WriteState)
    said: list[Action] = [action for action in driver.said if isinstance(action, kinds)]
    driver.said.clear()
    return said


def abandoned(_driver: EagerDriver, sender: Sender) -> None:
    sender.abandon("k")


def was_reset(_driver: EagerDriver, sender: Sender) -> None:
    sender.reset()


def silent(driver: EagerDriver, _sender: Sender) -> None:
    driver.pass_time(LEASE_S)


def replaced(driver: EagerDriver, _sender: Sender) -> None:
    offer_eagerly(driver, Sender(driver, "newer"), "k", "second")


def on_device_of_a_trainer(driver: EagerDriver, _sender: Sender) -> None:
    """Has a trainer from before a restart say that it trains what the orchestrator sends once more."""
    Trainer(driver).attach(on_device=[("k", "train/k/1")])


End = Callable[[EagerDriver, Sender], None]
ENDS = (abandoned, was_reset, silent, replaced, on_device_of_a_trainer)


@pytest.mark.parametrize("end", ENDS)
def test_a_slot_that_was_filling_is_free_only_behind_a_wait_for_its_writers(
    driver: EagerDriver, sender: Sender, end: End
) -> None:
    grant = sender.grant("k")
    driver.chunk(chunk_headers(grant)[0])
    driver.said.clear()
    end(driver, sender)
    wait, free, *_ = on_slot(driver)
    assert isinstance(wait, AwaitWriters)
    assert (wait.arrivals.slot, wait.arrivals.token) == (grant.slot, grant.token)
    assert free == WriteState(grant.slot, SlotState.FREE)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("eager", [True, False])
def test_whoever_gets_the_slot_in_the_same_event_gets_it_behind_that_wait(
    driver: EagerDriver, sender: Sender, end: End, eager: bool
) -> None:
    sender.grant("k")
    other = Sender(driver, "waits")
    offer_eagerly(driver, other, "next", body=None if eager else b"", queue="elsewhere", wait_s=1000.0)
    driver.said.clear()
    end(driver, sender)
    kinds = [type(action) for action in on_slot(driver)]
    filled = [WriteBody, WriteState] if eager or end is replaced else []
    assert kinds == [AwaitWriters, WriteState, WriteLoan, *filled]
    if end is not replaced:
        only(other.heard(), Staged if eager else Granted)


def test_what_was_published_has_no_writers(driver: EagerDriver, sender: Sender) -> None:
    sender.stage("k")
    driver.said.clear()
    sender.abandon("k")
    assert on_slot(driver) == [WriteState(0, SlotState.FREE)]


def test_what_came_with_its_offer_never_had_writers(driver: EagerDriver, sender: Sender) -> None:
    offer_eagerly(driver, sender, "k")
    sender.abandon("k")
    assert not any(isinstance(action, AwaitWriters) for action in on_slot(driver))


def test_a_slot_that_still_grows_has_no_writers(driver: EagerDriver, sender: Sender) -> None:
    sender.offer("k", nbytes=40_000)
    sender.abandon("k")
    assert not any(isinstance(action, AwaitWriters) for action in on_slot(driver))


# --- a chunk that is being written meanwhile ---


def writing_the_last(driver: EagerDriver, sender: Sender) -> tuple[Arrivals, ChunkHeader]:
    """Brings all chunks but the last, which a thread writes now."""
    *first, last = chunk_headers(sender.grant("k"))
    for header in first:
        assert driver.chunk(header) is None
    arrivals = driver.ledger.incoming.claim(last)
    assert isinstance(arrivals, Arrivals)
    return arrivals, last


def test_a_chunk_that_is_written_while_its_slot_is_given_away_completes_nothing(
    driver: EagerDriver, sender: Sender
) -> None:
    arrivals, last = writing_the_last(driver, sender)
    offer_eagerly(driver, Sender(driver, "waits"), "next")
    incoming = driver.ledger.incoming
    abandon = Abandon(id=driver.new_id(), queue="train", key="k", attempt="train/k/1")
    actions = driver.ledger.control(sender.address, abandon, driver.now)
    assert [type(action) for action in actions if isinstance(action, AwaitWriters | WriteBody)] == [
        AwaitWriters,
        WriteBody,
    ]
    assert not incoming.wait_until_left(arrivals, 0.0), "the slot's next bytes would be written over"
    assert incoming.settle(arrivals, last, None, driver.now)
    assert incoming.wait_until_left(arrivals, 0.0)
    driver.perform(actions)
    with driver.nothing_moves():
        driver.perform(driver.ledger.filled(arrivals, driver.now))
    assert (driver.ready(), driver.bodies) == (("next",), {0: body_of("next")})
