"""What a micro-batch waits for is told from what the daemon says, each case by its own words."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.cli.stories import Case, Seen, judge
from forebay.cli.stories.promoted import phases
from forebay.wire import MicroBatchState as State
from forebay.wire import PeerStatus

from .seen_stories import (
    SENDER,
    TRAINER,
    UNKNOWN,
    moment,
    offer,
    peeked,
    queue,
    seen,
    slot,
    status,
)

READY = peeked(State.READY, slot=0, generation=1, slot_state="READY", place=0)
FILLING = peeked(State.FILLING, slot=0, generation=1, slot_state="FILLING")
OFFERED = peeked(State.OFFERED, age_s=12.0)


def filling(**fields: float) -> Seen:
    one = slot(0, "FILLING", "k", sender=SENDER, expected_bytes=1000, **fields)
    return seen(FILLING, status(one))


ALL_READY = (slot(0, "READY", "a", age_s=40.0), slot(1, "READY", "b", age_s=38.0))
BUSY = queue(ready=("a", "b"), on_device=("d",), on_device_s=(300.0,))
WAITING: dict[str, Any] = {"offers": (offer("first"), offer("k"))}

CASES = {
    "never": (seen(None), Case.NEVER_OFFERED, ("never had it", "has not offered this key")),
    "never, and alike": (
        seen(None, status(slot(0, "READY", "k1"))),
        Case.NEVER_OFFERED,
        ("there is 'k1'",),
    ),
    "never, and awaited": (
        seen(None, status(queues=(queue(waits_for=("k",), asks_s=30.0),))),
        Case.NEVER_OFFERED,
        ("trainer pid 42 on gpu, has waited for it for 30 s",),
    ),
    "elsewhere": (
        seen(None, None, moment("offered", 9, queue="other")),
        Case.OTHER_QUEUE,
        ("offered to 'other'", "--queue 'other'"),
    ),
    "refused": (
        seen(None, None, moment("refuse", 9, "code=too_large leaf ['x'] has 9 GiB"), moment("dropped", 9)),
        Case.REFUSED,
        ("9.0 s ago (too_large): leaf ['x'] has 9 GiB", "slot_max_bytes"),
    ),
    "refused again": (
        seen(None, None, moment("refuse", 9, "code=draining no"), moment("refuse", 2, "code=draining no")),
        Case.REFUSED,
        ("2.0 s ago", "2 refusals in all", "have the sender stage it again"),
    ),
    "refused, and drained still": (
        seen(None, status(draining=True), moment("refuse", 9, "code=draining no")),
        Case.REFUSED,
        ("9.0 s ago", "forebay resume"),
    ),
    "forgotten": (
        seen(None, None, moment("ready", 9), moment("forget", 5, who="forebay forget pid 3 on h")),
        Case.FORGOTTEN,
        ("5.0 s ago by forebay forget pid 3 on h", "as if it were new"),
    ),
    "its end is forgotten": (
        seen(None, None, moment("consumed", 9)),
        Case.FORGOTTEN,
        ("it was consumed 9.0 s ago", "remembered_keys"),
    ),
    "no slot: no trainer": (
        seen(OFFERED, status(*ALL_READY, queues=(queue(trainer=None, ready=("a", "b")),), **WAITING)),
        Case.WAITS_FOR_SLOT,
        ("for 12 s", "refused in 18 s", "behind 1 other offer", "2 READY", "'a' READY for 40 s", "no trainer"),
    ),
    "no slot: trainer holds all": (
        seen(
            OFFERED,
            status(
                *(slot(i, "LENT", f"l{i}", holder=TRAINER, held_s=60.0 + i) for i in range(2)),
                **WAITING,
            ),
        ),
        Case.WAITS_FOR_SLOT,
        (
            "'l0' with trainer pid 42 on gpu for 60 s",
            "holds all 2 slots, and has held the first for 61 s",
            "look at the trainer",
        ),
    ),
    "no slot: paused": (
        seen(OFFERED, status(*ALL_READY, queues=(queue(ready=("a", "b"), paused=True),), **WAITING)),
        Case.WAITS_FOR_SLOT,
        ("has paused queue 'train'", "forebay resume 'train'"),
    ),
    "no slot: trainer slow": (
        seen(
            OFFERED,
            status(
                *ALL_READY, queues=(queue(ready=("a", "b"), on_device=("d",), on_device_s=(300.0,)),), **WAITING
            ),
        ),
        Case.WAITS_FOR_SLOT,
        ("has 'd' on its device, for 5 min, and asks for no more", "it compiles"),
    ),
    "no slot: a silent sender": (
        seen(
            OFFERED,
            status(
                slot(0, "FILLING", "f", sender=SENDER, expected_bytes=100, silent_s=9.0, lease_left_s=21.0),
                **WAITING,
            ),
        ),
        Case.WAITS_FOR_SLOT,
        ("'f' FILLING", "orchestrator pid 7 on there has been silent for 9.0 s", "its lease ends in 21 s"),
    ),
    "no slot: nobody's fault": (
        seen(OFFERED, status(*ALL_READY, queues=(queue(ready=("a", "b"), asks_s=0.1),), **WAITING)),
        Case.WAITS_FOR_SLOT,
        ("more slots (slots)",),
    ),
    "no slot: too small ones": (
        seen(OFFERED, status(slot(0, "FREE"), **WAITING)),
        Case.WAITS_FOR_SLOT,
        ("FREE are too small",),
    ),
    "slot grows": (
        seen(peeked(State.OFFERED, slot=1, payload_bytes=5 << 30)),
        Case.SLOT_GROWS,
        ("slot 1 grows for its 5 GiB",),
    ),
    "filling": (
        filling(received_bytes=500, age_s=1.0, silent_s=0.1),
        Case.FILLING,
        ("50% of 1000 B", "500 B/s from orchestrator pid 7 on there", "wait for the sender"),
    ),
    "slow": (
        filling(received_bytes=100, age_s=20.0, silent_s=0.1),
        Case.SENDER_SLOW,
        ("10%", "5 B/s", "the rest takes 3 min"),
    ),
    "silent": (
        filling(received_bytes=430, silent_s=8.0, lease_left_s=22.0),
        Case.SENDER_SILENT,
        (
            "orchestrator pid 7 on there has been silent for 8.0 s, at 43%; its lease ends in 22 s",
            "see whether it lives",
        ),
    ),
    "silent, and speaks": (
        seen(
            FILLING,
            status(
                slot(0, "FILLING", "k", sender=SENDER, expected_bytes=1000, silent_s=8.0),
                peers=(PeerStatus(peer=SENDER, heard_s=0.5),),
            ),
        ),
        Case.SENDER_SILENT,
        ("so it lives", "data endpoint"),
    ),
    "no trainer": (
        seen(READY, status(queues=(queue(trainer=None, ready=("k",), last_trainer=TRAINER, gone_s=12.0),))),
        Case.NO_TRAINER,
        ("has been READY in slot 0 for 5.0 s", "trainer pid 42 on gpu has been gone for 12 s", "see why it ended"),
    ),
    "no trainer, ever": (
        seen(READY, status(queues=(queue(trainer=None, ready=("k",)),))),
        Case.NO_TRAINER,
        ("no trainer", "attaches to this queue"),
    ),
    "paused": (
        seen(READY, status(queues=(queue(ready=("k",), paused=True),))),
        Case.PAUSED,
        ("paused queue 'train'", "forebay resume 'train'"),
    ),
    "all paused": (seen(READY, status(paused=True)), Case.PAUSED, ("all queues", "forebay resume")),
    "trainer of before": (
        seen(READY, status(queues=(queue(ready=("k",), trainer=UNKNOWN, trainer_is_back=False),))),
        Case.TRAINER_NOT_BACK,
        ("has not come back since the daemon started",),
    ),
    "another key": (
        seen(READY, status(slot(0, "READY", "k"), queues=(queue(ready=("k",), waits_for=("x",), asks_s=9.0),))),
        Case.TRAINER_WANTS_OTHERS,
        ("has waited for 'x' instead for 9.0 s; nobody has offered 'x'", "compare the keys"),
    ),
    "busy": (
        seen(
            peeked(State.READY, slot=0, slot_state="READY", place=2),
            status(
                slot(1, "LENT", "l", holder=TRAINER),
                queues=(queue(ready=("a", "b", "k"), on_device=("d",), on_device_s=(7.0,)),),
            ),
        ),
        Case.TRAINER_BUSY,
        (
            "behind 2 others",
            "trainer pid 42 on gpu, has 'd' on its device, for 7.0 s, holds 'l'",
            "asks for no more",
        ),
    ),
    "busy with something else": (
        seen(READY, status(slot(0, "READY", "k", age_s=0.5), queues=(queue(ready=("k",)),))),
        Case.TRAINER_BUSY,
        ("trainer pid 42 on gpu, has nothing on its device, and asks for no more", "wait"),
    ),
    "the trainer stands still": (
        seen(READY, status(slot(0, "READY", "k", age_s=41.0), queues=(queue(ready=("k",)),))),
        Case.TRAINER_STILL,
        ("has nothing on its device and asks for nothing", "the first for 41 s", "stands still: look at it"),
    ),
    "behind one that is not promoted": (
        seen(
            READY,
            status(
                slot(0, "READY", "k", age_s=41.0),
                slot(1, "LENT", "l", holder=TRAINER, held_s=58.0),
                queues=(queue(ready=("k",)),),
            ),
        ),
        Case.TRAINER_STILL,
        ("trainer pid 42 on gpu", "has held 'l' in slot 1 for 58 s without promoting it", "look at it"),
    ),
    "not promoted": (
        seen(
            peeked(State.READY, slot=0, slot_state="LENT", holder=TRAINER, held_s=58.0),
            status(slot(0, "LENT", "k", holder=TRAINER, held_s=58.0), slot(1, "FREE")),
        ),
        Case.TRAINER_STILL,
        (
            "slot 0 has been lent to trainer pid 42 on gpu for 58 s",
            "has nothing on its device",
            "look at the trainer",
        ),
    ),
    "next": (seen(READY, status(queues=(queue(ready=("k",), asks_s=0.1),))), Case.NEXT, ("any moment",)),
    "stopping": (
        seen(READY, status(draining=True, stopping=True, queues=(queue(ready=("k",), asks_s=0.1),))),
        Case.NEXT,
        ("the daemon stops, and only keep_pool keeps it",),
    ),
    "lent": (
        seen(peeked(State.READY, slot=0, slot_state="LENT", holder=TRAINER, held_s=4.0)),
        Case.LENT,
        ("has been lent to trainer pid 42 on gpu for 4.0 s", "not on the device yet"),
    ),
    "lent, device full": (
        seen(
            peeked(State.READY, slot=0, slot_state="LENT", holder=TRAINER, held_s=40.0),
            status(queues=(queue(on_device=("d",), on_device_s=(9.0,)),)),
        ),
        Case.LENT,
        ("has 'd' on its device, for 9.0 s", "promoted when there is room"),
    ),
    "lent, trainer of before": (
        seen(
            peeked(State.READY, slot=0, slot_state="LENT", holder=TRAINER, held_s=40.0),
            status(queues=(queue(trainer_is_back=False),)),
        ),
        Case.TRAINER_NOT_BACK,
        ("lent to trainer pid 42 on gpu for 40 s", "lives, and has not come back since the daemon started"),
    ),
    "lent to another than the queue's trainer of before": (
        seen(
            peeked(State.READY, slot=0, slot_state="LENT", holder=SENDER, held_s=4.0),
            status(queues=(queue(trainer_is_back=False),)),
        ),
        Case.LENT,
        ("lent to orchestrator pid 7 on there",),
    ),
    "on the device of a trainer of before": (
        seen(peeked(State.ON_DEVICE, holder=TRAINER, age_s=40.0), status(queues=(queue(trainer_is_back=False),))),
        Case.TRAINER_NOT_BACK,
        ("on the device of trainer pid 42 on gpu for 40 s", "has not come back", "unless it stands still"),
    ),
    "quarantined": (
        seen(peeked(State.READY, slot=3, slot_state="QUARANTINED", holder=TRAINER)),
        Case.QUARANTINED,
        ("slot 3 with it was let go of by trainer pid 42 on gpu", "still holds its lock", "end that process"),
    ),
    "on device": (
        seen(peeked(State.ON_DEVICE, holder=TRAINER)),
        Case.ON_DEVICE,
        ("has been on the device of trainer pid 42 on gpu for 5.0 s",),
    ),
    "consumed": (
        seen(
            peeked(State.CONSUMED),
            None,
            moment("offered", 30),
            moment("filling", 28),
            moment("ready", 20),
            moment("lent", 19),
            moment("on_device", 15),
            moment("consumed", 5),
        ),
        Case.CONSUMED,
        ("waiting for a slot 2.0 s, filling 8.0 s, READY 1.0 s, lent 4.0 s, on the device 10 s",),
    ),
    "dropped": (seen(peeked(State.DROPPED, reason="NaN in it")), Case.DROPPED, ("5.0 s ago: NaN in it",)),
    "dropped: its sender fell silent": (
        seen(
            peeked(State.DROPPED, reason="the sender fell silent while filling"),
            None,
            moment("offered", 30, who="other pid 8 on h"),
            moment("offered", 15, who="orchestrator pid 7 on there"),
            moment("dropped", 5, "the sender fell silent while filling"),
        ),
        Case.DROPPED,
        ("fell silent while filling; that was orchestrator pid 7 on there", "look at the sender and the network"),
    ),
    "dropped: its sender is not remembered": (
        seen(peeked(State.DROPPED, reason="the sender fell silent while filling")),
        Case.DROPPED,
        ("fell silent while filling. look",),
    ),
    "reset": (seen(peeked(State.DROPPED, reason="the queue was reset")), Case.DROPPED, ("see who reset it",)),
    "stale": (
        seen(peeked(State.DROPPED, reason="stale: it is 9.0 s old, limit 5 s")),
        Case.STALE,
        ("limit 5 s", "max_age_s"),
    ),
    "replaced and no more": (seen(peeked(State.DROPPED, reason="replaced")), Case.REPLACED, ("stage it again",)),
    "lost": (
        seen(peeked(State.LOST, reason="its trainer, t pid 4 on h, died before it was finished")),
        Case.LOST,
        ("its trainer, t pid 4 on h, died", "can stage the same key again"),
    ),
    "took a place": (
        seen(
            READY,
            status(queues=(queue(trainer=None, ready=("k",)),)),
            moment("offered", 9),
            moment("dropped", 4, "replaced"),
            moment("offered", 3, who="other pid 8 on h"),
        ),
        Case.NO_TRAINER,
        ("it took the place of an earlier attempt 3.0 s ago by other pid 8 on h",),
    ),
    "another attempt was refused": (
        seen(peeked(State.CONSUMED), None, moment("offered", 9), moment("refuse", 2, "code=consumed was trained")),
        Case.CONSUMED,
        ("another attempt was refused 2.0 s ago (consumed): was trained",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_where_it_is_what_it_waits_for_and_what_to_do_is_told(name: str) -> None:
    what, case, told = CASES[name]
    judgement = judge(what)
    assert judgement.case is case
    assert judgement.remedy
    for words in told:
        assert words in f"{judgement.words}. {judgement.remedy}", str(judgement)


def test_every_case_is_told_by_one_of_these() -> None:
    assert {case for _, case, _ in CASES.values()} == set(Case)


def test_phases_are_those_of_the_last_attempt() -> None:
    moments = [moment("offered", 30), moment("dropped", 29), moment("offered", 9), moment("filling", 8)]
    assert phases(moments) == {"waiting for a slot": 1.0}
    assert phases([]) == {}


def test_a_phase_that_came_twice_counts_twice() -> None:
    told = ("offered", "filling", "ready", "lent", "quarantined", "returned", "lent", "on_device")
    moments = [moment(event, 20 - index) for index, event in enumerate(told)]
    assert phases(moments)["lent"] == 4.0
