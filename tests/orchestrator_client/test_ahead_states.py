"""A micro-batch's states in the loop: it moves as the table says, and lets its payload go."""

from __future__ import annotations

import itertools

import pytest

from forebay.orchestrator_client.ahead_states import AHEAD_TRANSITIONS, AheadEvent, AheadState, Entry
from forebay.orchestrator_client.source import Upcoming
from forebay.orchestrator_client.step_report import StepReport
from forebay.wire import LocalError

S = AheadState


def entry_in(state: AheadState) -> Entry:
    entry = Entry(Upcoming(0, 0, "a", False, object()), StepReport(0), (0.0, 0.0))
    entry.state = state
    return entry


@pytest.mark.parametrize(("state", "event"), list(itertools.product(AheadState, AheadEvent)))
def test_a_micro_batch_moves_as_the_table_says_and_in_no_other_way(state: AheadState, event: AheadEvent) -> None:
    entry = entry_in(state)
    after = AHEAD_TRANSITIONS.get((state, event))
    if after is not None:
        entry.apply(event)
        assert entry.state is after
        return
    with pytest.raises(LocalError, match=f"Entry\\('a', {state}\\) cannot take '{event}'"):
        entry.apply(event)
    assert entry.state is state
    assert entry.payload is not None
    assert not entry.touched_trainer


def test_a_micro_batch_ends_trained_failed_or_skipped_and_every_state_is_reached() -> None:
    ends = set(AheadState) - {state for state, _ in AHEAD_TRANSITIONS}
    assert ends == {S.TRAINED, S.FAILED, S.SKIPPED}
    assert set(AHEAD_TRANSITIONS.values()) | {S.PULLED} == set(AheadState)


def test_a_payload_is_let_go_when_its_bytes_are_elsewhere_for_good() -> None:
    let_go = set()
    for (state, event), after in AHEAD_TRANSITIONS.items():
        entry = entry_in(state)
        entry.apply(event)
        if entry.payload is None:
            let_go.add(after)
    assert let_go == {S.SENT, S.TRAINED, S.FAILED, S.SKIPPED}


def test_neither_an_entry_nor_what_the_predicate_sees_shows_the_payload() -> None:
    entry = entry_in(S.PULLED)
    entry.payload = "secret"
    assert repr(entry) == "Entry('a', pulled)"
    assert repr(entry.upcoming()) == "Upcoming(step=0, index=0, key='a', ends_step=False, policy_version=None)"
    assert entry.upcoming().payload == "secret"
