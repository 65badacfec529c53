"""Any history of a real ledger, also one whose beginning is forgotten, is told as lives that can be true."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import Phase as RunPhase
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from forebay.wire import Events, GetEvents, Peer
from forebay.wire.life_reader import past_of
from forebay.wire.lives import End, Life, Past, Phase, Span, in_slots

from .ledger_driver import INSPECTOR, Driver, only
from .ledger_peers import Sender, Trainer
from .test_ledger_histories import LedgerHistories

AFTER: dict[Phase, set[Phase]] = {
    Phase.WAITING: {Phase.FILLING},
    Phase.FILLING: {Phase.READY},
    Phase.READY: {Phase.LENT, Phase.ON_DEVICE},
    Phase.LENT: {Phase.QUARANTINED, Phase.ON_DEVICE},
    Phase.QUARANTINED: {Phase.READY, Phase.ON_DEVICE},
    Phase.ON_DEVICE: set(),
}


def told_by(driver: Driver) -> Events:
    driver.heard(INSPECTOR)
    return only(driver.say(INSPECTOR, GetEvents(id=driver.new_id())), Events)


class ToldHistories(LedgerHistories):
    """The same histories, looked at by an inspector after each event."""

    @invariant()
    def the_lives_are_those_of_the_slots(self) -> None:
        events = told_by(self.driver)
        assert events.oldest == 1
        past = past_of(events.moments, events.now_s)
        assert_can_be_true(past)
        rows = in_slots(past.lives)
        for slot in self.driver.status().slots:
            now = [(life, span) for life, span in rows.get(slot.index, []) if span.end is End.OPEN]
            # What a slot grows for has not been granted it yet, and that of a batch that waits is not told.
            state = "FREE" if slot.state == "FILLING" and not slot.expected_bytes else slot.state
            told = [(span.phase.name, life.queue, life.key, span.generation) for life, span in now]
            assert told == ([] if state == "FREE" else [(state, slot.queue, slot.key, slot.generation)]), past
            for life, _ in now:
                assert life.payload_bytes in (None, slot.payload_bytes)
                assert life.policy_version in (None, slot.policy_version)
        assert_nothing_is_lost(past)

    @rule(forgotten=st.integers(1, 400))
    def what_is_forgotten_is_not_made_up(self, forgotten: int) -> None:
        events = told_by(self.driver)
        moments = events.moments[min(forgotten, max(0, len(events.moments) - 1)) :]
        part = past_of(moments, events.now_s)
        assert_can_be_true(part)
        known = {moment.at_s for moment in moments} | {events.now_s}
        assert {at for life in part.lives for at in times_of(life)} <= known
        assert_agrees(part, past_of(events.moments, events.now_s))


def assert_can_be_true(past: Past) -> None:
    """Asserts that phases are in order, that a slot holds one thing at a time, that an open end is the last."""
    for life in past.lives:
        assert_in_order(life)
    for row in in_slots(past.lives).values():
        for (_, before), (_, after) in itertools.pairwise(row):
            assert before.ended_at <= after.began_at, (before, after)
            assert before.end is not End.OPEN


def assert_in_order(life: Life) -> None:
    # A slot is released and its micro-batch on the device in one go; a history may begin right between the two.
    if life.spans and life.spans[0].is_begin_known and life.spans[0].phase is not Phase.ON_DEVICE:
        assert life.spans[0].phase is Phase.WAITING, life
    for before, after in itertools.pairwise(life.spans):
        assert after.phase in AFTER[before.phase], life
        assert before.ended_at == after.began_at, life
        assert before.end is End.KNOWN, life
        assert after.is_begin_known, life
    for span in life.spans:
        assert span.began_at <= span.ended_at, life
        assert (span.slot >= 0) is (span.phase not in (Phase.WAITING, Phase.ON_DEVICE)), life
    if life.outcome and life.spans:
        assert life.ended_at is not None
        assert life.spans[-1].ended_at <= life.ended_at, life


def assert_nothing_is_lost(past: Past) -> None:
    """Asserts that the end of all that was ever in a slot was told."""
    lost = [(life, span) for life in past.lives for span in life.spans if span.end is End.LOST]
    assert lost == [], past


def assert_agrees(part: Past, whole: Past) -> None:
    """Asserts that each beginning and each end that a part tells of is one that the whole tells of."""
    spans = [(life.queue, life.key, span) for life in whole.lives for span in life.spans]
    for life in part.lives:
        for span in life.spans:
            same = [
                other
                for queue, key, other in spans
                if (queue, key) == (life.queue, life.key) and is_same(span, other)
            ]
            assert same, (life, span)


def is_same(span: Span, other: Span) -> bool:
    if span.end is not other.end or span.ended_at != other.ended_at:
        return False
    if span.phase is not other.phase and (span.is_begin_known or span.phase is not Phase.LENT):
        return False  # that a slot was given back does not tell whether it had been quarantined
    return other.began_at <= span.began_at and (not span.is_begin_known or span.began_at == other.began_at)


def times_of(life: Life) -> Sequence[float]:
    return [at for span in life.spans for at in (span.began_at, span.ended_at)]


ToldHistories.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    phases=[RunPhase.explicit, RunPhase.reuse, RunPhase.generate],
)
TestToldHistories = ToldHistories.TestCase


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.FILLING, Phase.READY])
def test_what_a_trainer_turns_out_to_have_leaves_its_slot_at_a_known_time(phase: Phase) -> None:
    driver = Driver(slots=1)
    sender, trainer = Sender(driver), Trainer(driver)
    if phase is Phase.WAITING:
        sender.grant("other")
        sender.offer("a")
    elif phase is Phase.FILLING:
        sender.grant("a")
    else:
        sender.stage("a")
    driver.now += 5.0
    trainer.attach(on_device=[("a", "by another way")])
    events = told_by(driver)
    life = next(life for life in past_of(events.moments, events.now_s).lives if life.key == "a")
    assert life.outcome == "already_on_device"
    assert (life.spans[-1].phase, life.spans[-1].end, life.spans[-1].ended_at) == (phase, End.KNOWN, driver.now)
    # And of what is on the device since nobody knows when, only the end is told.
    trainer.finished("a", attempt="by another way")
    events = told_by(driver)
    *_, known = past_of(events.moments, events.now_s).lives
    assert (known.key, known.outcome, known.spans) == ("a", "consumed", ())


def test_what_is_adopted_is_told_in_its_state_with_who_has_it_and_with_no_beginning() -> None:
    driver = Driver(slots=2)
    sender, trainer = Sender(driver), Trainer(driver)
    trainer.attach()
    for key in ("on device", "lent", "ready"):
        sender.stage(key)
        if key == "on device":
            trainer.promoted(trainer.lends(1)[0])
            trainer.want(2)
    driver.notes["holder1"] = Peer(name="noted", pid=42, host="gpu")
    driver.restart()
    events = told_by(driver)
    lives = {life.key: life for life in past_of(events.moments, events.now_s).lives}
    assert {key: [shape_of(span) for span in life.spans] for key, life in lives.items()} == {
        "lent": [("lent", "noted pid 42 on gpu", False, "open")],
        "ready": [("ready", "", False, "open")],
        "on device": [("on_device", "noted pid 42 on gpu", False, "open")],
    }
    trainer.attach(on_device=[("on device", "train/on device/1")])
    trainer.finished("on device")
    events = told_by(driver)
    lives = {life.key: life for life in past_of(events.moments, events.now_s).lives}
    assert [shape_of(span)[-1] for span in lives["on device"].spans] == ["known"]
    assert lives["on device"].outcome == "consumed"


def shape_of(span: Span) -> tuple[str, str, bool, str]:
    return span.phase.value, span.trainer, span.is_begin_known, span.end.value
