from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.shm import SLOT_TRANSITIONS, IllegalTransitionError, Slot, SlotEvent, SlotState, SlotTable
from forebay.wire import LocalError

PAIRS = list(itertools.product(SlotState, SlotEvent))


def make_table(state: SlotState, generation: int = 7) -> SlotTable:
    return SlotTable([Slot(0, SlotState.READY, 1), Slot(1, state, generation, 4096), Slot(2)])


def assert_refused(table: SlotTable, generation: int, event: SlotEvent) -> None:
    before = copy.deepcopy(list(table))
    with pytest.raises(IllegalTransitionError) as caught:
        table.apply(1, generation, event)
    assert list(table) == before
    slot, message = before[1], str(caught.value)
    for word in ("slot 1", f"generation {slot.generation}", slot.state.name, repr(event.value), str(generation)):
        assert word in message


# --- the table itself ---


def reachable(start: SlotState) -> set[SlotState]:
    found: set[SlotState] = set()
    new = {start}
    while new:
        found |= new
        new = {after for (before, _), after in SLOT_TRANSITIONS.items() if before in found} - found
    return found


def test_every_state_is_reachable_and_leads_back_to_free() -> None:
    assert reachable(SlotState.FREE) == set(SlotState)
    for state in SlotState:
        assert SlotState.FREE in reachable(state)


def test_every_event_occurs_in_the_table() -> None:
    assert {event for _, event in SLOT_TRANSITIONS} == set(SlotEvent)


def test_the_table_is_the_one_of_the_design() -> None:
    moves = {(before.name, event.value): after.name for (before, event), after in SLOT_TRANSITIONS.items()}
    assert moves == {
        ("FREE", "loan"): "FILLING",
        ("FILLING", "publish"): "READY",
        ("FILLING", "abandon"): "FREE",
        ("READY", "lend"): "LENT",
        ("READY", "drop"): "FREE",
        ("LENT", "release"): "FREE",
        ("LENT", "holder died"): "QUARANTINED",
        ("QUARANTINED", "holder's lock is free"): "READY",
        ("QUARANTINED", "release"): "FREE",
    }


def test_only_a_loan_leaves_free_and_only_a_publish_makes_ready_from_filling() -> None:
    assert [event for state, event in SLOT_TRANSITIONS if state is SlotState.FREE] == [SlotEvent.LOAN]
    assert SLOT_TRANSITIONS[SlotState.FILLING, SlotEvent.PUBLISH] is SlotState.READY
    # What a holder may still read is never overwritten: nothing leaves QUARANTINED but its lock, or its own word.
    leaves = {event for state, event in SLOT_TRANSITIONS if state is SlotState.QUARANTINED}
    assert leaves == {SlotEvent.HOLDER_LOCK_FREE, SlotEvent.RELEASE}


# --- moving by it ---


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair in SLOT_TRANSITIONS])
def test_a_move_in_the_table_is_made_and_moves_no_other_slot(state: SlotState, event: SlotEvent) -> None:
    table = make_table(state)
    others = copy.deepcopy([table[0], table[2]])
    slot = table.apply(1, 7, event)
    assert slot is table[1]
    assert slot.state is SLOT_TRANSITIONS[state, event]
    assert slot.generation == (8 if event is SlotEvent.LOAN else 7)
    assert slot.slot_bytes == 4096
    assert [table[0], table[2]] == others


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair not in SLOT_TRANSITIONS])
def test_a_move_that_is_not_in_the_table_is_refused_and_nothing_moves(state: SlotState, event: SlotEvent) -> None:
    assert_refused(make_table(state), 7, event)


@pytest.mark.parametrize("generation", [0, 6, 8, -7, 1 << 64])
@pytest.mark.parametrize(("state", "event"), list(SLOT_TRANSITIONS))
def test_a_move_for_another_generation_is_refused_and_nothing_moves(
    state: SlotState, event: SlotEvent, generation: int
) -> None:
    assert_refused(make_table(state), generation, event)


def test_an_illegal_move_is_a_mistake_of_our_own() -> None:
    assert issubclass(IllegalTransitionError, LocalError)


@given(st.lists(st.sampled_from(SlotEvent), max_size=40))
def test_the_generation_grows_at_each_loan_and_at_nothing_else(events: list[SlotEvent]) -> None:
    table = SlotTable([Slot(0)])
    loans = 0
    for event in events:
        if (table[0].state, event) in SLOT_TRANSITIONS:
            table.apply(0, loans, event)
            loans += event is SlotEvent.LOAN
        assert table[0].generation == loans


def test_only_an_existing_slot_at_its_own_generation_is_current() -> None:
    table = make_table(SlotState.READY)
    assert table.is_current(1, 7)
    for index, generation in [(1, 6), (1, 8), (0, 7), (2, 7), (3, 0), (-1, 0), (-2, 7), (1 << 64, 0)]:
        assert not table.is_current(index, generation)


def test_a_table_shows_itself_and_its_slots() -> None:
    table = make_table(SlotState.LENT)
    assert repr(table) == "SlotTable(0:READY, 1:LENT, 2:FREE)"
    assert len(table) == 3
    assert [slot.index for slot in table] == [0, 1, 2]
