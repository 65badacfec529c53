"""From a history to a trace: what viewers need, whatever happened and whatever is forgotten."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from forebay.cli.tracing.lanes import lanes_for
from forebay.orchestrator_client import Bar
from forebay.wire.plain_json import json_line

from ..daemon.ledger_driver import Driver
from ..daemon.ledger_peers import Sender, Trainer
from ..daemon.test_ledger_histories import LedgerHistories
from .trace_rules import Event, check_trace, of_kind
from .traced import history_of, passes, trace_by

HOSTILE = "a\x1b[31m\x9b2J\u202e\r\n[bold]\U0001f600"


def names(events: list[Event], what: str) -> dict[int, str]:
    place = "pid" if what == "process_name" else "tid"
    return {event[place]: event["args"]["name"] for event in events if event["name"] == what}


def test_a_micro_batch_is_in_the_row_of_whoever_has_it_and_in_that_of_its_slot(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    passes(driver, sender, trainer, "a")
    events = check_trace(trace_by(driver))
    processes, threads = names(events, "process_name"), names(events, "thread_name")
    assert [
        (processes[span["pid"]], threads[span["tid"]], span["name"], span["dur"]) for span in of_kind(events, "X")
    ] == [
        ("orchestrator orchestrator pid 7 on there", "stages for train", "wait for a slot a", 0),
        ("orchestrator orchestrator pid 7 on there", "stages for train", "fill a", 1_000_000),
        ("slots", "slot 0", "fill a", 1_000_000),
        ("daemon 1 on here", "ready in train", "ready a", 1_000_000),
        ("slots", "slot 0", "ready a", 1_000_000),
        ("trainer trainer-holder1 pid 4711 on gpu-host", "trains train", "lent a", 1_000_000),
        ("slots", "slot 0", "lent a", 1_000_000),
        ("trainer trainer-holder1 pid 4711 on gpu-host", "trains train", "on device a", 1_000_000),
    ]
    args = of_kind(events, "X")[1]["args"]
    assert args["queue"] == "train"
    assert (args["bytes"], args["policy_version"], args["slot"], args["outcome"]) == (600, 4, 0, "consumed")
    way = [(event["ph"], processes[event["pid"]].split()[0]) for event in of_kind(events, "s", "t", "f")]
    assert way == [("s", "orchestrator"), ("t", "daemon"), ("t", "trainer"), ("f", "trainer")]


def test_micro_batches_at_the_same_time_are_in_lanes_of_their_own(driver: Driver, sender: Sender) -> None:
    sender.stage("a")
    driver.now += 1.0
    sender.stage("b")
    driver.now += 1.0
    events = check_trace(trace_by(driver))
    assert {"ready in train", "ready in train 2"} < set(names(events, "thread_name").values())


def test_what_is_over_at_once_comes_before_what_begins_then_in_its_row(driver: Driver, sender: Sender) -> None:
    sender.grant("a")
    sender.grant("b")
    sender.abandon("b")
    driver.now += 1.0
    spans = of_kind(check_trace(trace_by(driver)), "X")
    own = [(span["name"], span["dur"]) for span in spans if span["pid"] == spans[0]["pid"]]
    assert sorted(own) == sorted(
        [("wait for a slot a", 0), ("fill a", 1_000_000), ("wait for a slot b", 0), ("fill b", 0)]
    )
    assert own[-1] == ("fill a", 1_000_000)


def test_counters_tell_how_many_are_ready_and_how_many_slots_are_free(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    passes(driver, sender, trainer, "a")
    driver.now += 1.0
    sender.stage("b")
    counters = of_kind(check_trace(trace_by(driver)), "C")
    ready = [event["args"]["train"] for event in counters if event["name"] == "READY micro-batches"]
    free = [event["args"]["FREE"] for event in counters if event["name"] == "FREE slots"]
    assert ready == [0, 1, 0, 0, 1]
    assert free == [2, 2, 2, 3, 2]


def test_what_is_ready_for_longer_than_the_history_reaches_back_is_counted(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    sender.stage("old")
    first = len(history_of(driver)[0])
    passes(driver, sender, trainer, "a")
    counters = of_kind(check_trace(trace_by(driver, first=first)), "C")
    assert [event["args"]["train"] for event in counters if event["name"] == "READY micro-batches"] == [1, 2, 1, 1]
    assert [event["args"]["FREE"] for event in counters if event["name"] == "FREE slots"] == [1, 1, 1, 2]


def test_what_is_cut_off_says_so(driver: Driver, sender: Sender, trainer: Trainer) -> None:
    passes(driver, sender, trainer, "a")
    sender.stage("b")
    driver.now += 5.0
    # Forgotten are the trainer's coming, and the micro-batch's offer and grant.
    spans = of_kind(check_trace(trace_by(driver, first=3)), "X")
    cut = [
        (span["name"], span["args"].get("begin"), span["args"].get("end"))
        for span in spans
        if span["cat"] == "cut"
    ]
    assert cut == [
        ("fill a", "it began before; the history has forgotten when", None),
        ("fill a", "it began before; the history has forgotten when", None),
        ("ready b", None, "it goes on"),
        ("ready b", None, "it goes on"),
    ]
    assert all(span["dur"] == 5_000_000 for span in spans if span["name"] == "ready b")


def test_incidents_are_instants_and_orders_are_seen_in_all_rows(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    passes(driver, sender, trainer, "a")
    sender.offer("a", "another attempt")
    driver.perform(driver.ledger.drain(driver.now))
    instants = of_kind(check_trace(trace_by(driver)), "i")
    assert [(event["name"], event["s"]) for event in instants] == [
        ("attach", "t"),
        ("refuse", "t"),
        ("drain", "g"),
    ]
    assert instants[1]["args"]["words"].startswith("code=consumed")


def test_the_last_micro_batches_are_shown_and_no_incident_before_them(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    passes(driver, sender, trainer, "a", "b", "c")
    for shown in (trace_by(driver, last=2), trace_by(driver, seconds=9.0)):
        events = check_trace(shown)
        assert {span["args"]["key"] for span in of_kind(events, "X")} == {"b", "c"}
        assert of_kind(events, "i") == []
        assert shown["otherData"]["micro_batches"] == 2


def test_an_empty_history_is_a_trace_too(driver: Driver) -> None:
    events = check_trace(trace_by(driver))
    assert of_kind(events, "X", "C", "i", "s") == []


def test_merged_bars_stand_in_rows_of_their_own_beside_each_other(
    driver: Driver, sender: Sender, trainer: Trainer
) -> None:
    passes(driver, sender, trainer, "a")
    bars = [
        Bar("stage", "a", 1001.0, 1003.0),
        Bar("stage", "b", 1002.0, 1004.0),
        Bar("device", "a", 1004.0, 1005.0),
    ]
    events = check_trace(trace_by(driver, orchestrator=bars))
    threads = names(events, "thread_name")
    merged = [event for event in of_kind(events, "X") if event["cat"] == "merged"]
    assert [(threads[event["tid"]], event["name"]) for event in merged] == [
        ("stage", "stage a"),
        ("stage 2", "stage b"),
        ("device", "device a"),
    ]


def test_what_peers_say_is_spelled_out(driver: Driver) -> None:
    sender, trainer = Sender(driver, HOSTILE), Trainer(driver, queue=HOSTILE)
    trainer.attach()
    sender.stage(HOSTILE, queue=HOSTILE)
    trainer.finished(HOSTILE, reason=HOSTILE)
    bars: dict[str, Any] = {HOSTILE: [Bar(HOSTILE, HOSTILE, 1.0, 2.0)]}
    text = json_line(trace_by(driver, **bars))
    check_trace(json.loads(text))
    assert text.isascii()
    assert "\\u001b" not in text


class TracedHistories(LedgerHistories):
    """Random histories of a real ledger, some of which is forgotten."""

    @rule(first=st.integers(0, 200), last=st.integers(1, 30))
    def any_history_makes_a_trace_by_the_rules(self, first: int, last: int) -> None:
        check_trace(trace_by(self.driver, first=first, last=last))
        check_trace(trace_by(self.driver))


TracedHistories.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestTracedHistories = TracedHistories.TestCase


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=30))
def test_lanes_are_as_few_as_overlap(sizes: list[tuple[int, int]]) -> None:
    intervals = [(float(began), float(began + lasts)) for began, lasts in sizes]
    lanes = lanes_for(intervals)
    for (one, lane), (other, other_lane) in itertools.combinations(zip(intervals, lanes, strict=True), 2):
        assert lane != other_lane or one[1] <= other[0] or other[1] <= one[0]
    most = max((sum(a <= at < b for a, b in intervals) for at in range(40)), default=0)
    lasting = {lane for (a, b), lane in zip(intervals, lanes, strict=True) if b > a}
    assert len(lasting) <= max(most, 1)
