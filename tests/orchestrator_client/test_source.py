"""What a source yields is never shown, and keys: made, kept, refused when repeated, and forgotten."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from forebay.orchestrator_client.source import KeyBook, MicroBatch, Upcoming
from forebay.wire import UsageError


class Secret:
    def __repr__(self) -> str:
        raise AssertionError("it was shown")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    __hash__ = None  # type: ignore[assignment]


def test_a_micro_batch_shows_compares_and_hashes_no_payload() -> None:
    micro_batch = MicroBatch(Secret(), "a", ends_step=True)
    assert repr(micro_batch) == "MicroBatch(key='a', ends_step=True, policy_version=None, expires_s=None)"
    assert micro_batch != MicroBatch(Secret(), "a", ends_step=True)
    assert len({micro_batch, MicroBatch(Secret())}) == 2
    upcoming = Upcoming(1, 2, "b", False, Secret(), 7)
    assert repr(upcoming) == "Upcoming(step=1, index=2, key='b', ends_step=False, policy_version=7)"


def test_a_micro_batch_cannot_be_changed() -> None:
    micro_batch = MicroBatch({})
    assert (micro_batch.key, micro_batch.ends_step) == ("", False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        micro_batch.key = "a"  # type: ignore[misc]


def test_an_empty_key_is_made_from_run_step_and_place() -> None:
    book = KeyBook("0123456789ab")
    assert book.enter("", 0, 0) == "0123456789ab/000000/0000"
    assert book.enter("", 12, 345) == "0123456789ab/000012/0345"
    assert book.enter("", 1234567, 12345) == "0123456789ab/1234567/12345", "wider, and still its own"


def test_a_repeated_key_is_refused_with_its_place_and_nothing_is_entered() -> None:
    book = KeyBook("run")
    book.enter("a", 0, 0)
    for step in (0, 1):
        with pytest.raises(UsageError, match=f"repeats a key at place 7 of step {step}; got a;"):
            book.enter("a", step, 7)
    assert book.enter("", 1, 0) == "run/000001/0000"


def test_a_key_that_was_made_may_not_be_given() -> None:
    book = KeyBook("run")
    made = book.enter("", 0, 0)
    with pytest.raises(UsageError, match="repeats"):
        book.enter(made, 0, 1)
    book.enter("run/000000/0002", 0, 1)
    with pytest.raises(UsageError, match="repeats"):
        book.enter("", 0, 2)


def test_keys_of_past_steps_are_forgotten_and_those_of_present_and_later_ones_are_not() -> None:
    book = KeyBook("run")
    for step, key in enumerate("abcd"):
        book.enter(key, step, 0)
    book.forget_before(2)
    for key in "cd":
        with pytest.raises(UsageError, match="repeats"):
            book.enter(key, 4, 0)
    for key in "ab":
        assert book.enter(key, 4, 0) == key


@pytest.mark.parametrize("key", [None, 7, b"a", ("a",)])
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match="key is no text; got"):
        KeyBook("run").enter(key, 0, 0)
