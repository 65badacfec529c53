"""The table of a call's life: what it has moves a call, and nothing else does."""

from __future__ import annotations

import itertools

import pytest

from forebay.trainer.call_record import Address, CallRecord
from forebay.trainer.call_states import CALL_TRANSITIONS, CallEvent, moved
from forebay.wire import CallId, CallState, LocalError, PackedTree, Refused

from .call_desk import returned

S, E = CallState, CallEvent
ALL = list(itertools.product(CallState, CallEvent))
LEGAL = {
    (S.RECEIVING, E.COMPLETE): S.QUEUED,
    (S.RECEIVING, E.CANCEL): S.OVER,
    (S.RECEIVING, E.REFUSE): S.OVER,
    (S.QUEUED, E.START): S.RUNNING,
    (S.QUEUED, E.CANCEL): S.OVER,
    (S.QUEUED, E.REFUSE): S.OVER,
    (S.RUNNING, E.END): S.OVER,
}


def record(state: CallState) -> CallRecord:
    options = PackedTree(b"", b"")
    return CallRecord(CallId("c", 1), "m", "lane", Address(b"sender"), 7, since=5.0, state=state, options=options)


def test_the_table_holds_these_moves_and_no_other() -> None:
    assert CALL_TRANSITIONS == LEGAL


def test_a_call_that_runs_can_only_end_and_one_that_is_over_does_nothing_more() -> None:
    assert [event for state, event in CALL_TRANSITIONS if state is S.RUNNING] == [E.END]
    assert not [event for state, event in CALL_TRANSITIONS if state is S.OVER]


@pytest.mark.parametrize(("state", "event"), [move for move in ALL if move in LEGAL])
def test_a_move_of_the_table_takes_a_call_there_and_notes_when(state: CallState, event: CallEvent) -> None:
    call = record(state)
    call.move(event, 9.0)
    assert (call.state, call.since) == (LEGAL[state, event], 9.0)


@pytest.mark.parametrize(("state", "event"), [move for move in ALL if move not in LEGAL])
def test_any_other_move_is_an_error_that_names_both_and_moves_nothing(state: CallState, event: CallEvent) -> None:
    call = record(state)
    with pytest.raises(LocalError, match=f"{state}.*{event.value}"):
        call.move(event, 9.0)
    with pytest.raises(LocalError):
        call.end(event, returned(), 9.0)
    with pytest.raises(LocalError):
        moved(state, event)
    assert (call.state, call.since, call.answer) == (state, 5.0, None)
    assert call.options is not None


def test_a_call_that_is_over_keeps_its_answer_and_lets_the_rest_go() -> None:
    call = record(S.RUNNING)
    answer = returned()
    call.end(E.END, answer, 9.0)
    assert call.answer is answer
    assert (call.options, call.manifest, call.arrivals) == (None, None, None)


def test_a_record_says_whose_call_it_is_and_where() -> None:
    assert repr(record(S.QUEUED)) == "CallRecord('m', c 1, queued)"


def test_a_refusal_is_an_answer_as_well() -> None:
    call = record(S.QUEUED)
    call.end(E.REFUSE, Refused(code="draining", words=""), 9.0)  # type: ignore[arg-type]
    assert call.state is S.OVER
