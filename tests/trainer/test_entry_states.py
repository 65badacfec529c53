"""An entry's table: a missing line is an illegal move, and what may hold device memory counts towards the cap."""

from __future__ import annotations

from itertools import product

import pytest

from forebay.trainer.entry import Entry, InProcess
from forebay.trainer.entry_states import ENTRY_TRANSITIONS, MOVING, USES_DEVICE, EntryEvent, EntryState
from forebay.wire import LocalError

S, E = EntryState, EntryEvent
LEGAL = sorted(ENTRY_TRANSITIONS)
ILLEGAL = sorted(set(product(EntryState, EntryEvent)) - set(ENTRY_TRANSITIONS))


def entry_in(state: EntryState) -> Entry:
    entry = Entry("a", InProcess())
    for event in paths_from_host()[state]:
        entry.apply(event)
    assert entry.state is state
    return entry


def paths_from_host() -> dict[EntryState, tuple[EntryEvent, ...]]:
    paths: dict[EntryState, tuple[EntryEvent, ...]] = {S.HOST: ()}
    frontier = [S.HOST]
    while frontier:
        state = frontier.pop(0)
        for (before, event), after in ENTRY_TRANSITIONS.items():
            if before is state and after not in paths:
                paths[after] = (*paths[state], event)
                frontier.append(after)
    return paths


def states_taking(event: EntryEvent) -> set[EntryState]:
    return {before for before, at in ENTRY_TRANSITIONS if at is event}


def test_every_state_is_reached_from_the_host() -> None:
    assert set(paths_from_host()) == set(EntryState)


@pytest.mark.parametrize(("state", "event"), LEGAL)
def test_a_legal_move_ends_where_the_table_says(state: EntryState, event: EntryEvent) -> None:
    entry = entry_in(state)
    entry.apply(event)
    assert entry.state is ENTRY_TRANSITIONS[state, event]


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_illegal_move_raises_and_moves_nothing(state: EntryState, event: EntryEvent) -> None:
    entry = entry_in(state)
    with pytest.raises(LocalError) as caught:
        entry.apply(event)
    assert str(caught.value) == f"Entry('a', {state}) cannot take '{event}'"
    assert entry.state is state
    assert entry.on_device is None


def test_nothing_happens_to_an_entry_that_is_gone() -> None:
    assert not [pair for pair in LEGAL if pair[0] is S.GONE]


def test_every_state_but_gone_has_a_way_out() -> None:
    assert {before for before, _ in LEGAL} == set(EntryState) - {S.GONE}


def test_every_move_is_one_that_this_list_of_meanings_allows() -> None:
    # The table told a second time, in other words: an added or lost line of it is noticed here.
    assert states_taking(E.PROMOTE) == {S.HOST}
    assert states_taking(E.DEMOTE) == {S.ON_DEVICE}
    assert states_taking(E.TAKE) == {S.ON_DEVICE, S.REJECTED}
    assert states_taking(E.DISPATCH) == {S.IN_STEP}
    assert states_taking(E.ARRIVE) == states_taking(E.REJECT) == {S.PROMOTING, S.ABANDONED}
    assert states_taking(E.RETURN) == {S.DEMOTING, S.ABANDONED}
    assert states_taking(E.FAIL) == MOVING
    assert states_taking(E.DROP) == set(EntryState) - {S.IN_STEP, S.ABANDONED, S.GONE}


def test_what_is_off_the_device_or_gone_does_not_count_towards_the_cap() -> None:
    assert set(EntryState) - USES_DEVICE == {S.HOST, S.REJECTED, S.GONE}


def test_bytes_under_way_count_towards_the_cap() -> None:
    assert {S.PROMOTING, S.DEMOTING, S.ABANDONED} == MOVING
    assert MOVING < USES_DEVICE


def test_only_a_transfer_that_begins_sets_bytes_in_motion_and_only_its_end_stops_them() -> None:
    begins, ends = {E.PROMOTE, E.DEMOTE}, {E.ARRIVE, E.FAIL, E.REJECT, E.RETURN}
    for (before, event), after in ENTRY_TRANSITIONS.items():
        assert (before not in MOVING and after in MOVING) == (event in begins)
        assert (before in MOVING and after not in MOVING) == (event in ends)


def test_a_drop_keeps_counting_until_the_transfer_under_way_is_over() -> None:
    for state in states_taking(E.DROP):
        expected = S.ABANDONED if state in MOVING else S.GONE
        assert ENTRY_TRANSITIONS[state, E.DROP] is expected


def test_what_a_transfer_of_an_abandoned_entry_ends_in_does_not_matter() -> None:
    assert {after for (before, _), after in ENTRY_TRANSITIONS.items() if before is S.ABANDONED} == {S.GONE}


def test_a_transfer_that_failed_leaves_the_entry_where_it_came_from() -> None:
    assert ENTRY_TRANSITIONS[S.PROMOTING, E.FAIL] is S.HOST
    assert ENTRY_TRANSITIONS[S.DEMOTING, E.FAIL] is S.ON_DEVICE
