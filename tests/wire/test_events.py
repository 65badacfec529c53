"""The vocabulary of events."""

from __future__ import annotations

import pytest

from forebay.wire import EVENT_MEANINGS, Event, MicroBatchState


def test_every_event_has_a_meaning_of_its_own() -> None:
    assert list(EVENT_MEANINGS) == list(Event)
    assert len(set(EVENT_MEANINGS.values())) == len(Event)


@pytest.mark.parametrize("state", MicroBatchState)
def test_a_micro_batchs_state_is_an_event_of_the_same_word(state: MicroBatchState) -> None:
    assert Event(state).value == state.value


@pytest.mark.parametrize("event", Event)
def test_an_event_is_one_word_that_begins_no_field(event: Event) -> None:
    assert event.value.replace("_", "").isalpha()
    assert event.value.isascii()
