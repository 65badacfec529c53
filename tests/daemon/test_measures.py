"""What the ledger measures: each time from the move that begins it to the one that ends it, by a fake clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.daemon.figures import Figures, distributions
from forebay.daemon.measures import BYTES_BOUNDS, SECONDS_BOUNDS, Histogram, Measures
from forebay.wire import Forget, Granted

from .ledger_driver import Driver
from .ledger_peers import Sender, Trainer, manifest_of


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=4)


def figures(driver: Driver) -> Figures:
    return driver.ledger.figures(driver.now)


def measured(driver: Driver) -> dict[str, tuple[int, float]]:
    """Returns how many values each histogram has that has any, and their sum."""
    found = figures(driver).measured
    return {name: (sum(each.counts), each.total) for name, each in found.items() if any(each.counts)}


# --- histograms ---


@given(st.lists(st.floats(0, 1e6)))
def test_each_value_is_counted_in_the_first_bucket_whose_bound_is_not_below_it(values: list[float]) -> None:
    histogram = Histogram((1.0, 10.0, 100.0))
    for value in values:
        histogram.observe(value)
    held = histogram.now()
    lows, highs = (-1.0, 1.0, 10.0, 100.0), (1.0, 10.0, 100.0, float("inf"))
    for count, low, high in zip(held.counts, lows, highs, strict=True):
        assert count == sum(low < value <= high for value in values)
    assert held.total == pytest.approx(sum(values))


def test_what_was_seen_once_does_not_change_afterwards() -> None:
    histogram = Histogram((1.0,))
    before = histogram.now()
    histogram.observe(2.0)
    assert (before.counts, before.total) == ((0, 0), 0.0)


@pytest.mark.parametrize("bounds", [SECONDS_BOUNDS, BYTES_BOUNDS])
def test_bounds_grow(bounds: tuple[float, ...]) -> None:
    assert all(low < high for low, high in itertools.pairwise(bounds))


def test_every_histogram_is_told() -> None:
    assert set(distributions(Measures())) == set(vars(Measures()))


# --- a micro-batch's way ---


def test_each_part_of_a_micro_batchs_way_is_measured_once(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    grant = sender.grant("k")
    driver.pass_time(2.0)
    sender.fill(grant)
    assert measured(driver) == {"stage_s": (1, 2.0), "payload_bytes": (1, 600.0)}
    driver.now += 3.0
    [lend] = trainer.lends(1)
    driver.now += 0.5
    trainer.promoted(lend)
    driver.now += 7.0
    trainer.finished("k", released=lend)
    assert measured(driver) == {
        "stage_s": (1, 2.0),
        "payload_bytes": (1, 600.0),
        "queue_s": (1, 3.0),
        "lent_s": (1, 0.5),
        "on_device_s": (1, 7.0),
    }


def test_repeats_of_what_was_said_measure_nothing_again(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    [lend] = trainer.lends(1)
    trainer.promoted(lend)
    driver.now += 1.0
    trainer.finished("k", released=lend)
    before = measured(driver)
    sender.offer("k")
    trainer.lends(1)
    trainer.promoted(lend)
    trainer.finished("k", released=lend)
    assert measured(driver) == before


def test_an_offer_that_waits_for_a_slot_is_measured_from_its_coming(driver: Driver, sender: Sender) -> None:
    for key in "abcd":
        sender.grant(key)
    sender.offer("e", age_s=100.0)
    driver.now += 5.0
    [grant] = [message for message in sender.abandon("a") if isinstance(message, Granted)]
    driver.now += 1.0
    sender.fill(grant)
    assert measured(driver)["stage_s"] == (1, 6.0), "and not from what its sender says of its age"


def test_a_slot_that_comes_back_from_a_dead_trainer_waits_anew(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    trainer.lends(1)
    driver.now += 100.0
    trainer.die()
    driver.now += 1.0
    other = Trainer(driver, "holder2")
    other.attach()
    [lend] = other.lends(1)
    driver.now += 2.0
    other.promoted(lend)
    assert measured(driver)["queue_s"] == (2, 1.0)
    assert measured(driver)["lent_s"] == (1, 2.0), "what a dead trainer held is no time that a release took"


def test_what_a_dead_daemon_left_is_timed_from_when_that_one_did_it(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("lent")
    sender.stage("ready")
    [lend] = trainer.lends(1)
    driver.now += 100.0
    driver.restart()
    driver.now += 3.0
    trainer.attach(held=[(lend.slot, lend.generation)])
    trainer.promoted(lend)
    trainer.lends(1)
    assert measured(driver) == {"queue_s": (1, 103.0), "lent_s": (1, 103.0)}


def test_what_is_trained_straight_from_its_slot_was_not_on_the_device(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    [lend] = trainer.lends(1)
    driver.now += 4.0
    trainer.finished("k", lend=lend)
    assert measured(driver)["lent_s"] == (1, 4.0)
    assert "on_device_s" not in measured(driver)
    assert driver.count("finished_consumed") == 1


# --- trainers that wait ---


def waits_s(driver: Driver) -> float:
    return figures(driver).queues[0].trainer_waits_s


def test_a_demand_that_is_met_at_once_is_no_wait(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    trainer.lends(1)
    assert "trainer_wait_s" not in measured(driver)
    driver.now += 9.0
    assert waits_s(driver) == 0.0


def test_a_wait_lasts_until_the_lend_and_the_next_one_begins_there(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    trainer.lends(2)
    driver.now += 3.0
    assert waits_s(driver) == 3.0
    sender.stage("a")
    assert measured(driver)["trainer_wait_s"] == (1, 3.0)
    driver.now += 4.0
    trainer.lends(2)  # said again
    assert waits_s(driver) == 4.0
    sender.stage("b")
    assert measured(driver)["trainer_wait_s"] == (2, 7.0)
    driver.now += 50.0
    assert waits_s(driver) == 0.0


def test_a_key_that_is_wanted_no_more_is_waited_for_no_more(driver: Driver, trainer: Trainer) -> None:
    trainer.lends(0, "k")
    driver.now += 3.0
    assert waits_s(driver) == 3.0
    trainer.lends(0)
    assert waits_s(driver) == 0.0
    assert "trainer_wait_s" not in measured(driver)


def test_a_trainer_that_left_waits_no_more(driver: Driver, trainer: Trainer) -> None:
    trainer.lends(1)
    driver.now += 3.0
    trainer.detach()
    [queue] = figures(driver).queues
    assert (queue.has_trainer, queue.trainer_waits_s) == (False, 0.0)
    trainer.attach()
    driver.now += 1.0
    assert waits_s(driver) == 0.0, "it has asked for nothing yet"


# --- what there is ---


def test_figures_tell_what_the_status_tells(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    sender.offer("d", manifest=manifest_of(700))
    first, _ = trainer.lends(2)
    trainer.promoted(first)
    sender.offer("e")
    sender.offer("f")
    seen = figures(driver)
    assert {state.name: count for state, count in seen.slots.items() if count} == {
        "READY": 1,
        "LENT": 1,
        "FILLING": 2,
    }
    assert seen.waiting_offers == driver.status().waiting_offers == 1
    assert seen.slot_bytes == sum(slot.slot_bytes for slot in driver.status().slots)
    [queue] = seen.queues
    assert (queue.name, queue.ready, queue.on_device, queue.has_trainer) == ("train", 1, 1, True)
    assert seen.counters == driver.status().counters
    assert not seen.draining
    driver.perform(driver.ledger.drain(driver.now))
    assert figures(driver).draining


def test_a_look_moves_nothing(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    trainer.lends(2)
    with driver.nothing_moves():
        assert figures(driver) == figures(driver)


def test_queues_with_a_trainer_come_first(driver: Driver, sender: Sender) -> None:
    for queue in ("a", "b", "c"):
        sender.stage("k", queue=queue)
    Trainer(driver, queue="b").attach()
    assert [queue.name for queue in figures(driver).queues] == ["b", "a", "c"]


# --- why they end ---


def test_every_end_without_training_is_counted_under_one_reason(driver: Driver, sender: Sender) -> None:
    trainer = Trainer(driver)
    trainer.attach()
    sender.stage("replaced")
    sender.stage("replaced", "2")
    sender.stage("abandoned")
    sender.abandon("abandoned")
    sender.reset()
    sender.grant("silent")
    driver.pass_time(1000.0)
    sender.stage("given_up")
    [lend] = trainer.lends(1)
    trainer.finished("given_up", lend=lend, reason="bad shape")
    sender.stage("forgotten")
    sender.say(Forget(id=driver.new_id(), queue="train", key="forgotten"))
    sender.stage("stale", expires_s=1.0)
    driver.pass_time(2.0)
    sender.stage("late", expires_s=1.0)
    [lend] = trainer.lends(2)
    driver.now += 2.0
    trainer.finished("late", lend=lend, reason="too late", stale=True)
    for key in ("detached", "died"):
        sender.stage(key)
        for found in trainer.lends(3):
            trainer.promoted(found)
        trainer.detach() if key == "detached" else trainer.die()
        if key == "detached":
            trainer.die()
            trainer = Trainer(driver, "holder2")
            trainer.attach()
    counters = figures(driver).counters
    dropped = {name: count for name, count in counters.items() if name.startswith("dropped_")}
    lost = {name: count for name, count in counters.items() if name.startswith("lost_")}
    assert dropped == {
        "dropped_replaced": 1,
        "dropped_reset": 1,
        "dropped_abandoned": 1,
        "dropped_silent": 1,
        "dropped_given_up": 1,
        "dropped_forgotten": 1,
        "dropped_stale_expired": 2,
    }
    assert lost == {"lost_detached": 1, "lost_died": 1}
    assert sum(dropped.values()) == counters["finished_dropped"]
    assert sum(lost.values()) == counters["finished_lost"]
