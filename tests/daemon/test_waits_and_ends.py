"""Awaiting a key, and the ends that an orchestrator or an operator brings about."""

from __future__ import annotations

import pytest

from forebay.wire import (
    PROTOCOL_VERSION,
    Gone,
    Goodbye,
    Granted,
    Hello,
    MicroBatchState,
    Peer,
    Reached,
    RefusalCode,
    Refused,
    Staged,
    WasReset,
    Welcome,
)

from .ledger_driver import LIMITS, Driver, Sender, Trainer, chunk_headers, only

READY, ON_DEVICE, CONSUMED = MicroBatchState.READY, MicroBatchState.ON_DEVICE, MicroBatchState.CONSUMED
AWAIT_LEASE_S = 60.0


@pytest.fixture
def driver() -> Driver:
    return Driver(slots=3, await_lease_s=AWAIT_LEASE_S)


# --- hello ---


def test_a_client_of_another_version_is_told_both(driver: Driver) -> None:
    stranger = Sender(driver, "stranger", hello=False)
    hello = Hello(id=5, version=PROTOCOL_VERSION + 1, peer=Peer(name="x", pid=1, host="h"))
    with driver.nothing_moves():
        refused = only(stranger.say(hello), Refused)
    assert (refused.id, refused.code, refused.version) == (5, RefusalCode.VERSION, PROTOCOL_VERSION)
    assert f"protocol {PROTOCOL_VERSION + 1}" in refused.words
    assert f"daemon {PROTOCOL_VERSION}" in refused.words
    assert only(stranger.offer("k"), Refused).code is RefusalCode.HELLO_FIRST


def test_a_welcome_tells_limits_epoch_and_where_data_goes(driver: Driver) -> None:
    welcome = Sender(driver, "new", hello=False).say_hello()
    assert isinstance(welcome, Welcome)
    assert (welcome.limits, welcome.epoch, welcome.data_endpoint) == (LIMITS, "epoch-1", "ipc://data")


def test_no_more_peers_are_known_than_may_be_and_a_forgotten_one_says_hello_again() -> None:
    driver = Driver(max_peers=3)
    old = Sender(driver, "old")
    for index in range(3):
        Sender(driver, f"new{index}")
    assert only(old.offer("k"), Refused).code is RefusalCode.HELLO_FIRST
    old.say_hello()
    assert only(old.offer("k"), Granted).slot == 0


# --- awaiting ---


def test_a_state_that_was_reached_is_told_at_once(sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    assert only(sender.wait_for("k", READY), Reached).state is READY
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.wait_for("k", READY), Reached).state is ON_DEVICE
    trainer.finished("k")
    for until in (READY, ON_DEVICE, CONSUMED):
        assert only(sender.wait_for("k", until), Reached).state is CONSUMED


def test_a_state_is_told_when_it_is_reached_and_no_earlier(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    grant = sender.grant("k")
    waits = {until: driver.new_id() for until in (READY, ON_DEVICE, CONSUMED)}
    for until, number in waits.items():
        assert sender.wait_for("k", until, id=number) == []

    def told() -> list[tuple[int, MicroBatchState]]:
        return [(message.id, message.state) for message in sender.heard() if isinstance(message, Reached)]

    for header in chunk_headers(grant):
        driver.chunk(header)
    assert told() == [(waits[READY], READY)]
    [lend] = trainer.lends(1)
    assert told() == []
    trainer.promoted(lend)
    assert told() == [(waits[ON_DEVICE], ON_DEVICE)]
    trainer.finished("k")
    assert told() == [(waits[CONSUMED], CONSUMED)]
    assert driver.ledger.next_deadline() is None


def test_a_key_that_ends_early_is_told_gone_with_the_reason(sender: Sender) -> None:
    sender.stage("k")
    assert sender.wait_for("k") == []
    sender.abandon("k")
    told = sender.wait_for("k", READY)
    assert [(message.state, message.reason) for message in told if isinstance(message, Gone)] == [
        (MicroBatchState.DROPPED, "abandoned by its sender")
    ]


def test_those_who_wait_are_told_gone_when_it_happens(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    watcher = Sender(driver, "watcher")
    assert watcher.wait_for("k") == []
    sender.reset()
    gone = only(watcher.heard(), Gone)
    assert (gone.state, gone.reason) == (MicroBatchState.DROPPED, "the queue was reset")


def test_an_unknown_key_is_refused(driver: Driver, sender: Sender) -> None:
    sender.stage("k", queue="eval")
    with driver.nothing_moves():
        assert only(sender.wait_for("k"), Refused).code is RefusalCode.UNKNOWN_KEY


@pytest.mark.parametrize("until", [MicroBatchState.DROPPED, MicroBatchState.LOST])
def test_nobody_may_wait_for_an_end_in_failure(driver: Driver, sender: Sender, until: MicroBatchState) -> None:
    sender.stage("k")
    with driver.nothing_moves():
        assert only(sender.wait_for("k", until), Refused).code is RefusalCode.BAD_REQUEST
    sender.reset()
    with driver.nothing_moves():
        assert only(sender.wait_for("k", until), Refused).code is RefusalCode.BAD_REQUEST


def test_a_wait_that_is_repeated_gets_one_answer(sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    for _ in range(5):
        assert sender.wait_for("k", ON_DEVICE, id=77) == []
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Reached).id == 77


def test_two_peers_with_the_same_id_both_get_an_answer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    other = Sender(driver, "other")
    sender.stage("k")
    assert sender.wait_for("k", ON_DEVICE, id=77) == other.wait_for("k", ON_DEVICE, id=77) == []
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Reached).id == only(other.heard(), Reached).id == 77


def test_a_wait_that_nobody_repeats_is_forgotten_after_its_lease(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("k")
    sender.wait_for("k", ON_DEVICE, id=77)
    assert driver.ledger.next_deadline() == driver.now + AWAIT_LEASE_S
    driver.pass_time(AWAIT_LEASE_S)
    assert driver.ledger.next_deadline() is None
    trainer.promoted(trainer.lends(1)[0])
    assert sender.heard() == []


def test_a_repeated_wait_renews_its_lease(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    for _ in range(3):
        sender.wait_for("k", ON_DEVICE, id=77)
        driver.pass_time(AWAIT_LEASE_S - 1)
    trainer.promoted(trainer.lends(1)[0])
    assert only(sender.heard(), Reached).id == 77


def test_who_waits_for_an_offer_that_is_refused_learns_it_at_the_latest_when_asking_again(driver: Driver) -> None:
    driver = Driver(slots=1)
    sender, watcher = Sender(driver), Sender(driver, "watcher")
    sender.grant("x")
    assert sender.offer("k", wait_s=5.0) == []
    assert watcher.wait_for("k", READY, id=1) == []
    driver.pass_time(5.0)
    told = [*watcher.heard(), *watcher.wait_for("k", READY, id=1)]
    assert told
    assert all(isinstance(message, Gone | Refused) for message in told)


# --- abandon ---


def test_abandon_gives_a_filling_slot_back(driver: Driver, sender: Sender) -> None:
    grant = sender.grant("k")
    assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED
    assert driver.states() == ["FREE"] * 3
    assert driver.headers[grant.slot].state.name == "FREE"


def test_abandon_takes_a_ready_entry_out_of_the_queue(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    assert only(sender.abandon("a"), Reached).state is MicroBatchState.DROPPED
    assert driver.ready() == ("b",)


def test_abandon_takes_an_offer_out_of_the_line(driver: Driver, sender: Sender) -> None:
    for key in ("x", "y", "z"):
        sender.grant(key)
    sender.offer("k")
    assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED
    assert driver.status().waiting_offers == 0


@pytest.mark.parametrize("way", ["lent", "quarantined", "on_device", "consumed"])
def test_abandon_leaves_what_the_trainer_holds_or_has_trained(
    driver: Driver, sender: Sender, trainer: Trainer, way: str
) -> None:
    sender.stage("k")
    [lend] = trainer.lends(1)
    if way == "quarantined":
        trainer.detach()
    elif way != "lent":
        trainer.promoted(lend)
    if way == "consumed":
        trainer.finished("k")
    expected = {"on_device": ON_DEVICE, "consumed": CONSUMED}.get(way, READY)
    with driver.nothing_moves():
        assert only(sender.abandon("k"), Reached).state is expected


def test_an_abandon_that_is_repeated_gets_the_same_answer(driver: Driver, sender: Sender) -> None:
    sender.grant("k")
    sender.abandon("k")
    with driver.nothing_moves():
        for _ in range(3):
            assert only(sender.abandon("k"), Reached).state is MicroBatchState.DROPPED


def test_an_abandon_of_a_replaced_attempt_leaves_its_successor(driver: Driver, sender: Sender) -> None:
    sender.stage("k", "old")
    sender.stage("k", "new")
    with driver.nothing_moves():
        assert only(sender.abandon("k", "old"), Refused).code is RefusalCode.UNKNOWN_KEY
    assert driver.ready() == ("k",)


# --- reset ---


def test_reset_drops_all_that_the_trainer_does_not_hold_and_tells_the_senders(trainer: Trainer) -> None:
    driver = Driver(slots=4)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    for key in ("on device", "lent", "ready"):
        sender.stage(key)
    trainer.promoted(trainer.lends(1)[0])
    trainer.lends(2)
    filler, waiter, other = (Sender(driver, name) for name in ("filler", "waiter", "other"))
    filler.grant("filling")
    other.stage("other", queue="eval")
    assert waiter.offer("waiting") == []
    operator = Sender(driver, "operator")
    assert only(operator.reset(), WasReset).dropped == 3
    for told in (filler, waiter):
        refused = only(told.heard(), Refused)
        assert refused.code is RefusalCode.DROPPED
        assert "'train' was reset" in refused.words
    assert driver.ready() == ()
    assert sorted(driver.states()) == ["FREE", "FREE", "LENT", "READY"]
    assert driver.on_device() == ("on device",)
    assert driver.ready("eval") == ("other",)


@pytest.mark.parametrize("end", ["dies", "detaches first"])
def test_what_a_trainer_held_at_a_reset_is_dropped_when_it_comes_back(
    driver: Driver, sender: Sender, trainer: Trainer, end: str
) -> None:
    for key in ("held", "given back", "later"):
        sender.stage(key)
        if key == "given back":
            held, given_back = trainer.lends(2)
            assert only(sender.reset(), WasReset).dropped == 0
    trainer.promoted(given_back)
    if end == "detaches first":
        trainer.detach()
    trainer.die()
    assert driver.ready() == ("later",)
    assert driver.states().count("FREE") == 2
    gone = only(sender.wait_for("held"), Gone)
    assert (gone.state, gone.reason) == (MicroBatchState.DROPPED, "the queue was reset")
    assert only(sender.offer("held", "anew"), Granted).slot == held.slot


def test_a_reset_that_is_repeated_or_of_an_unknown_queue_drops_nothing(driver: Driver, sender: Sender) -> None:
    sender.stage("k")
    sender.reset()
    with driver.nothing_moves():
        for queue in ("train", "unknown", "", "q" * 100):
            assert only(sender.reset(queue), WasReset).dropped == 0


def test_after_a_reset_those_who_wait_in_other_queues_are_served(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b", "c"):
        sender.stage(key)
    other = Sender(driver, "other")
    assert other.offer("k", queue="eval") == []
    sender.reset()
    assert only(other.heard(), Granted).slot >= 0


# --- drain and goodbye ---


def test_a_draining_daemon_takes_no_offers_and_lets_what_is_filling_finish(driver: Driver, sender: Sender) -> None:
    grant = sender.grant("filling")
    sender.stage("ready")
    sender.grant("other")
    sender.abandon("other")
    sender.grant("y")
    waiter = Sender(driver, "waiter")
    assert waiter.offer("waiting") == []
    assert driver.is_filling()
    driver.perform(driver.ledger.drain(driver.now))
    assert only(waiter.heard(), Refused).code is RefusalCode.DRAINING
    with driver.nothing_moves():
        assert only(sender.offer("new"), Refused).code is RefusalCode.DRAINING
        assert only(sender.offer("ready"), Staged).state is READY
    assert driver.status().draining
    sender.fill(grant)
    sender.abandon("y")
    assert not driver.is_filling()
    assert driver.ready() == ("ready", "filling")


def test_a_draining_daemon_still_serves_its_trainer(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    driver.perform(driver.ledger.drain(driver.now))
    [lend] = trainer.lends(1)
    trainer.promoted(lend)
    trainer.finished("k")
    assert only(sender.wait_for("k"), Reached).state is CONSUMED


@pytest.mark.parametrize("kept", [True, False])
def test_a_goodbye_reaches_every_peer_and_attached_trainer_once(
    driver: Driver, sender: Sender, trainer: Trainer, kept: bool
) -> None:
    detached = Trainer(driver, "holder2", queue="eval")
    detached.attach()
    detached.detach()
    sender.stage("k")
    driver.perform(driver.ledger.goodbye(kept=kept))
    assert only(sender.heard(), Goodbye).kept is kept
    assert only(trainer.heard(), Goodbye).kept is kept
    assert detached.heard() == []
    assert driver.ready() == ("k",)


# --- memory ---


def test_no_more_outcomes_are_remembered_than_may_be() -> None:
    driver = Driver(slots=1, remembered_keys=10)
    sender = Sender(driver)
    for index in range(100):
        sender.stage(f"key{index}")
        sender.reset()
    remembered = [index for index in range(100) if isinstance(sender.wait_for(f"key{index}", READY)[0], Gone)]
    assert remembered == list(range(90, 100))


def test_no_more_replaced_attempts_are_remembered_than_may_be() -> None:
    driver = Driver(slots=2, remembered_keys=10)
    sender = Sender(driver)
    for index in range(30):
        sender.stage("k", f"attempt{index}")
    with driver.nothing_moves():
        assert only(sender.offer("k", "attempt28"), Refused).code is RefusalCode.REPLACED
        assert only(sender.offer("k", "attempt19"), Refused).code is RefusalCode.REPLACED
    assert only(sender.offer("k", "attempt18"), Granted).attempt == "attempt18"


def test_a_remembered_outcome_holds_no_envelope_no_layout_and_no_peer() -> None:
    driver = Driver(slots=2)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    for key in ("consumed", "reset"):
        sender.stage(key)
    trainer.promoted(trainer.lends(1)[0])
    trainer.finished("consumed")
    sender.reset()
    for key in ("consumed", "reset"):
        batch = driver.ledger._book.find("train", key)
        assert batch is not None
        assert (batch.envelope, batch.leaf_bytes, batch.arrivals, batch.sender, batch.slot) == (
            b"",
            (),
            None,
            None,
            -1,
        )


def test_what_is_on_the_device_holds_no_layout_either(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    sender.stage("k")
    trainer.promoted(trainer.lends(1)[0])
    batch = driver.ledger._book.find("train", "k")
    assert batch is not None
    assert (batch.arrivals, batch.slot) == (None, -1)


# --- looking ---


def test_the_status_tells_what_every_slot_and_queue_holds(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("lent")
    trainer.lends(1)
    sender.stage("ready")
    grant = sender.grant("filling")
    driver.chunk(chunk_headers(grant)[0])
    assert sender.offer("waiting") == []
    driver.now += 2.5
    status = driver.status()
    rows = [(row.state, row.key, row.payload_bytes, row.received_bytes) for row in status.slots]
    assert rows == [("LENT", "lent", 600, 0), ("READY", "ready", 600, 0), ("FILLING", "filling", 600, 256)]
    assert [row.age_s for row in status.slots] == [2.5] * 3
    assert status.slots[0].holder is not None
    assert status.slots[0].holder.pid == 4711
    [queue] = status.queues
    assert (queue.name, queue.ready, queue.trainer_since_s, status.waiting_offers) == ("train", ("ready",), 2.5, 1)


def test_who_awaits_a_key_whose_offer_found_no_slot_is_told(driver: Driver, sender: Sender) -> None:
    for index in range(len(driver.slots)):
        sender.grant(f"x{index}")
    other = Sender(driver, "other")
    assert other.offer("a", wait_s=5.0) == []
    assert sender.wait_for("a") == []
    driver.pass_time(5.0)
    assert only(sender.heard(), Gone).reason == "no slot became free"


def test_who_awaits_a_key_that_a_trainer_comes_back_with_is_told(driver: Driver, sender: Sender) -> None:
    sender.grant("a")
    other = Sender(driver, "other")
    assert other.wait_for("a", MicroBatchState.ON_DEVICE) == []
    Trainer(driver, "holder9", queue="train").attach(on_device=[("a", "train/a/1")])
    assert only(other.heard(), Reached).state is MicroBatchState.ON_DEVICE


def test_an_attempt_that_had_a_place_and_fell_silent_goes_on_in_that_place(driver: Driver, sender: Sender) -> None:
    for key in ("a", "b"):
        sender.stage(key)
    sender.grant("a", "another")
    driver.pass_time(100.0)
    sender.heard()
    sender.fill(only(sender.offer("a", "another"), Granted))
    assert driver.ready() == ("a", "b")
