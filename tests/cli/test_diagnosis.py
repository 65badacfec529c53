"""What keeps micro-batches from getting on is told from a status, a line each; where nothing does, nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.cli.stories import Fault, diagnose
from forebay.wire import GIB, FaultStatus, SlotStatus, Status

from .seen_stories import SENDER, TRAINER, UNKNOWN, offer, queue, slot, status

LENT = (slot(0, "LENT", "a", holder=TRAINER, held_s=30.0), slot(1, "LENT", "b", holder=TRAINER, held_s=20.0))
SILENT = {"sender": SENDER, "expected_bytes": 100, "received_bytes": 43, "silent_s": 8.0, "lease_left_s": 22.0}


def of(*slots: SlotStatus, offers: Any = (), **fields: Any) -> Status:
    return status(*slots, queues=(queue(**fields),), offers=offers)


def failed(reason: str, age_s: float) -> FaultStatus:
    return FaultStatus(counter=f"handshake_failed_{reason}", age_s=age_s, by="10.0.0.7:51")


CASES: dict[str, tuple[Status, Fault, tuple[str, ...]]] = {
    "stopping": (status(draining=True, stopping=True), Fault.STOPPING, ("stops",)),
    "draining": (status(draining=True), Fault.DRAINING, ("takes nothing in", "forebay resume")),
    "paused": (status(paused=True), Fault.PAUSED, ("all queues",)),
    "one paused": (of(paused=True, ready=("a",)), Fault.PAUSED, ("queue 'train': 1 micro-batch READY",)),
    "one paused, and its trainer asks": (of(paused=True, asks_s=9.0), Fault.PAUSED, ("0 micro-batches READY",)),
    "no trainer": (
        of(trainer=None, ready=("a", "b"), last_trainer=TRAINER, gone_s=200.0),
        Fault.NO_TRAINER,
        ("2 micro-batches READY and no trainer", "trainer pid 42 on gpu has been gone for 3 min"),
    ),
    "no trainer, since nobody knows when": (
        of(trainer=None, ready=("a",), last_trainer=TRAINER, gone_s=2.0, was_seen_to_go=False),
        Fault.NO_TRAINER,
        ("trainer pid 42 on gpu has been gone for at least 2.0 s",),
    ),
    "not back": (
        of(
            slot(0, "LENT", "b", holder=TRAINER, held_s=7.0),
            *(slot(1, "LENT", "c", holder=TRAINER, held_s=9.0), slot(2, "LENT", "z", holder=UNKNOWN, held_s=99.0)),
            ready=("a",),
            on_device=("d",),
            on_device_s=(30.0,),
            trainer_is_back=False,
        ),
        Fault.NOT_BACK,
        (
            "pid 42 on gpu, the trainer of queue 'train', lives, and has not come back",
            "it holds 2 slots, the first for 9.0 s",
            "it has 'd' on its device, for 30 s",
        ),
    ),
    "somebody not back": (
        of(trainer=UNKNOWN, trainer_is_back=False, ready=("a",)),
        Fault.NOT_BACK,
        ("a trainer from before the restart, the trainer of", "has not come back"),
    ),
    "holds all": (of(*LENT), Fault.HOLDS_ALL, ("holds all 2 slots, and has held the first for 30 s",)),
    "busy": (
        of(ready=("a",), on_device=("d",), on_device_s=(90.0,)),
        Fault.BUSY,
        ("has 'd' on its device, for 90 s, and asks for no more",),
    ),
    "still": (
        of(slot(0, "READY", "a", age_s=41.0), slot(1, "READY", "b", age_s=3.0), ready=("a", "b")),
        Fault.STILL,
        ("nothing on its device and asks for nothing, though 2 micro-batches are READY, the first for 41 s",),
    ),
    "still since it attached": (
        of(slot(0, "READY", "a", age_s=41.0), ready=("a",), trainer_since_s=6.0),
        Fault.STILL,
        ("though 1 micro-batch is READY, the first for 6.0 s", "look at it"),
    ),
    "unpromoted": (
        of(slot(0, "LENT", "v-0", holder=TRAINER, held_s=58.0), slot(1, "FREE")),
        Fault.UNPROMOTED,
        ("pid 42 on gpu, the trainer of queue 'train', has held 'v-0' in slot 0 for 58 s without promoting it",),
    ),
    "not offered": (
        of(waits_for=("x",), asks_s=9.0),
        Fault.NOT_OFFERED,
        ("has waited for 'x' for 9.0 s", "nobody"),
    ),
    "starved": (
        of(asks_s=9.0),
        Fault.STARVED,
        ("has asked for more for 9.0 s", "nothing is offered either; forebay events"),
    ),
    "starved by a slow sender": (
        of(slot(0, "FILLING", "a", expected_bytes=100, received_bytes=25), asks_s=9.0),
        Fault.STARVED,
        ("1 filling (25%), 0 waiting", "senders are the slow side"),
    ),
    "silent": (
        of(slot(0, "FILLING", "a", **SILENT)),
        Fault.SILENT,
        ("has been silent for 8.0 s, at 43%", "ends in 22 s"),
    ),
    "quarantined": (of(slot(0, "QUARANTINED", "a", holder=TRAINER)), Fault.QUARANTINED, ("end that process",)),
    "waiting": (
        of(slot(0, "READY", "a"), offers=(offer("k"),), asks_s=0.5, ready=("a",)),
        Fault.WAITING,
        ("1 offer waits for a slot, the first for 12 s, refused in 18 s: of 1 slot, 1 READY",),
    ),
    "memory": (
        status(private_bytes=GIB, max_private_bytes=GIB),
        Fault.MEMORY,
        ("1 GiB of private memory, and ends at 1 GiB",),
    ),
    "handshakes": (
        status(
            counters={"handshake_failed_no_keys": 2, "handshake_failed_hung_up": 5},
            faults=(failed("no_keys", 90.0), failed("hung_up", 1.0)),
        ),
        Fault.HANDSHAKES,
        ("2 handshakes failed since the daemon's start (2 no_keys), the last 90 s ago, by 10.0.0.7:51",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_found_and_nothing_else(name: str) -> None:
    daemon, fault, told = CASES[name]
    (finding,) = diagnose(daemon)
    assert finding.fault is fault
    for words in told:
        assert words in str(finding)


def test_every_fault_is_found_in_one_of_these() -> None:
    assert {fault for _, fault, _ in CASES.values()} == set(Fault)


@pytest.mark.parametrize(
    "daemon",
    [
        status(queues=()),
        status(slot(0, "FREE")),
        of(
            slot(0, "LENT", "a", holder=TRAINER, held_s=500.0),
            slot(1, "FREE"),
            on_device=("d",),
            on_device_s=(9.0,),
        ),
        of(slot(0, "READY", "a"), ready=("a",), on_device=("d",), on_device_s=(30.0,)),
        of(slot(0, "READY", "a", age_s=60.0), ready=("a",), on_device=("d",), on_device_s=(0.1,)),
        of(slot(0, "READY", "a", age_s=4.0), ready=("a",)),
        of(slot(0, "READY", "a", age_s=60.0), ready=("a",), trainer_since_s=2.0),
        of(slot(0, "READY", "a", age_s=60.0), ready=("a",), asks_s=0.1),
        of(slot(0, "LENT", "a", holder=TRAINER, held_s=9.0), slot(1, "READY", "b", age_s=60.0), ready=("b",)),
        of(trainer=None, last_trainer=TRAINER, gone_s=9.0),
        of(waits_for=("x",), asks_s=0.2),
        of(slot(0, "FILLING", "x", expected_bytes=9), waits_for=("x",), asks_s=9.0),
        of(asks_s=0.5),
        of(slot(0, "READY", "a"), offers=(offer("k", waits_s=0.2),), asks_s=0.5, ready=("a",)),
        status(private_bytes=GIB // 2, max_private_bytes=GIB),
        status(private_bytes=GIB),
        status(counters={"handshake_failed_hung_up": 5, "published": 7}, faults=(failed("hung_up", 1.0),)),
        status(counters={"handshake_failed_no_keys": 2}, faults=(failed("no_keys", 601.0),)),
    ],
)
def test_of_a_daemon_that_works_there_is_nothing_to_say(daemon: Status) -> None:
    assert diagnose(daemon) == []


def test_a_step_that_holds_senders_up_names_its_trainer_before_it_is_long() -> None:
    held_up = of(slot(0, "READY", "a"), ready=("a",), on_device=("d",), on_device_s=(17.0,), offers=(offer("k"),))
    busy, waiting = diagnose(held_up)
    assert busy.fault is Fault.BUSY
    assert "trainer pid 42 on gpu" in busy.words
    assert "has 'd' on its device, for 17 s" in busy.words
    assert waiting.fault is Fault.WAITING
    assert waiting.remedy.startswith("mend what is told above")


def test_a_slot_that_is_not_promoted_is_told_of_sooner_where_a_sender_waits() -> None:
    slots = slot(0, "LENT", "a", holder=TRAINER, held_s=2.0), slot(1, "READY", "b")
    assert diagnose(of(*slots, ready=("b",))) == []
    found, waiting = diagnose(of(*slots, ready=("b",), offers=(offer("k"),)))
    assert found.fault is Fault.UNPROMOTED
    assert waiting.remedy.startswith("mend what is told above")


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_trainer_that_is_lent_nothing_by_order_does_not_stand_still(*, all_of_them: bool) -> None:
    queues = (queue(ready=("a",), paused=not all_of_them),)
    (found,) = diagnose(status(slot(0, "READY", "a", age_s=60.0), queues=queues, paused=all_of_them))
    assert found.fault is Fault.PAUSED


def test_offers_that_nothing_else_explains_send_the_reader_to_the_slots() -> None:
    (waiting,) = diagnose(of(slot(0, "LENT", "a", holder=TRAINER), offers=(offer("k"),)))
    assert waiting.fault is Fault.WAITING
    assert waiting.remedy.startswith("see what holds them")
