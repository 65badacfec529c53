from __future__ import annotations

from forebay.wire import (
    GONE,
    MICRO_BATCH_TRANSITIONS,
    REFUSAL_MEANINGS,
    MicroBatchEvent,
    MicroBatchState,
    RefusalCode,
)


def reachable(start: MicroBatchState) -> set[MicroBatchState]:
    found: set[MicroBatchState] = set()
    new = {start}
    while new:
        found |= new
        new = {after for (before, _), after in MICRO_BATCH_TRANSITIONS.items() if before in found} - found
    return found


def test_every_state_is_reachable_from_an_offer() -> None:
    assert reachable(MicroBatchState.OFFERED) == set(MicroBatchState)


def test_every_state_leads_to_an_end_and_the_ends_are_final() -> None:
    ends = set(MicroBatchState) - {before for before, _ in MICRO_BATCH_TRANSITIONS}
    assert ends == {MicroBatchState.CONSUMED, *GONE}
    for state in MicroBatchState:
        assert reachable(state) & ends


def test_what_is_gone_or_consumed_never_comes_back_to_be_trained() -> None:
    for state in (MicroBatchState.CONSUMED, *GONE):
        assert reachable(state) == {state}


def test_the_way_to_the_device_skips_nothing() -> None:
    state = MicroBatchState.OFFERED
    way = [MicroBatchEvent.GRANT, MicroBatchEvent.PUBLISH, MicroBatchEvent.PROMOTE, MicroBatchEvent.CONSUME]
    for event in way:
        froms = {before for before, when in MICRO_BATCH_TRANSITIONS if when is event}
        assert froms == {state}
        state = MICRO_BATCH_TRANSITIONS[state, event]
    assert state is MicroBatchState.CONSUMED


def test_an_event_leads_to_one_state_whatever_was_before() -> None:
    for (_, event), after in MICRO_BATCH_TRANSITIONS.items():
        assert (
            after
            == {
                MicroBatchEvent.GRANT: MicroBatchState.FILLING,
                MicroBatchEvent.PUBLISH: MicroBatchState.READY,
                MicroBatchEvent.PROMOTE: MicroBatchState.ON_DEVICE,
                MicroBatchEvent.CONSUME: MicroBatchState.CONSUMED,
                MicroBatchEvent.DROP: MicroBatchState.DROPPED,
                MicroBatchEvent.LOSE: MicroBatchState.LOST,
            }[event]
        )


def test_what_may_be_dropped_or_lost_is_all_that_is_not_at_an_end() -> None:
    droppable = {state for state, event in MICRO_BATCH_TRANSITIONS if event is MicroBatchEvent.DROP}
    assert droppable == set(MicroBatchState) - GONE - {MicroBatchState.CONSUMED}
    losable = {state for state, event in MICRO_BATCH_TRANSITIONS if event is MicroBatchEvent.LOSE}
    assert losable == {MicroBatchState.ON_DEVICE}


def test_every_event_occurs_in_the_table() -> None:
    assert {event for _, event in MICRO_BATCH_TRANSITIONS} == set(MicroBatchEvent)


def test_every_refusal_code_has_a_meaning_and_a_spelling_of_its_own() -> None:
    assert set(REFUSAL_MEANINGS) == set(RefusalCode)
    assert len(set(REFUSAL_MEANINGS.values())) == len(RefusalCode)
    assert all(code.value == code.name.lower() for code in RefusalCode)
