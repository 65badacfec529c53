"""The loop's decisions, without a loop: where a step begins and ends, and what the caller hears."""

from __future__ import annotations

import pytest

from forebay.orchestrator_client.source import MicroBatch
from forebay.wire import UsageError

from .ahead_hands import Hands

# --- steps ---


def test_a_step_that_begins_adopts_its_own_that_are_staged_or_being_staged() -> None:
    hands = Hands(4)
    hands.stage("a")
    hands.pull("B")
    hands.begin_staging()
    hands.pull("c")
    hands.begin_step(7.0)
    report = hands.books.present
    assert report is not None
    assert (report.number, report.adopted, report.began_at, report.pulled) == (0, 2, 7.0, 2)


def test_a_step_adopts_nothing_of_a_later_one() -> None:
    hands = Hands(4)
    hands.stage("A", "b", "c")
    hands.begin_step()
    report = hands.books.present
    assert report is not None
    assert report.adopted == 1


def test_a_step_is_over_when_its_last_result_is_taken() -> None:
    hands = Hands(4)
    hands.stage("a", "B", "c")
    hands.begin_step()
    hands.train("a", "B")
    for key in ("a", "B"):
        assert not hands.is_over()
        hands.take(key)
    assert hands.is_over()
    assert hands.books.take_result() is None


def test_the_sources_end_is_the_last_steps_end() -> None:
    hands = Hands(4)
    hands.stage("a")
    hands.begin_step()
    hands.train("a")
    hands.take("a")
    assert not hands.is_over()
    assert not hands.books.has_news
    hands.books.source_ended()
    assert hands.is_over()
    hands.books.begin_step(0.0)
    assert hands.books.step_is_known
    assert hands.books.give_step() is None


def test_a_step_that_is_asked_for_again_before_it_was_given_began_once() -> None:
    hands = Hands()
    hands.books.begin_step(1.0)
    assert not hands.books.step_is_known
    hands.books.begin_step(2.0)
    hands.stage("a")
    hands.books.begin_step(3.0)
    report = hands.books.give_step()
    assert report is not None
    assert report.began_at == 1.0
    with pytest.raises(UsageError, match="step 0 is not over; left of it: 'a';"):
        hands.books.begin_step(4.0)


def test_a_key_may_come_again_when_its_step_is_past_and_not_before() -> None:
    hands = Hands(4)
    hands.stage("A", "b")
    hands.begin_step()
    hands.train("A")
    hands.take("A")
    with pytest.raises(UsageError):
        hands.books.pulled(MicroBatch(object(), "A"), (0.0, 0.0))
    hands.begin_step()
    hands.pull("A")


# --- failures ---


def test_an_error_comes_to_the_caller_after_all_results_before_it() -> None:
    hands = Hands(4)
    hands.stage("a", "b")
    hands.begin_step()
    hands.train("a")
    entry = hands.begin_training()
    error = ValueError("b")
    hands.books.failed(entry, error)
    assert hands.failure() is None
    hands.take("a")
    assert hands.failure() is error
    assert hands.books.has_news
    assert not hands.is_over()


def test_of_two_errors_the_caller_hears_the_one_that_comes_first_in_order() -> None:
    hands = Hands(4)
    hands.stage("a")
    hands.pull("b")
    entry = hands.begin_staging()
    hands.books.source_failed(ValueError("later"))
    hands.books.failed(entry, ValueError("sooner"))
    hands.begin_step()
    hands.train("a")
    hands.take("a")
    assert str(hands.failure()) == "sooner"
    assert hands.books.to_train() is None


def test_after_an_error_nothing_is_pulled_or_staged_and_those_before_it_are_trained() -> None:
    hands = Hands(4)
    hands.stage("a")
    hands.pull("b")
    entry = hands.begin_staging()
    hands.pull("c")
    hands.books.failed(entry, ValueError("b"))
    assert hands.books.to_stage() is None
    assert not hands.may_pull()
    hands.begin_step()
    hands.train("a")
    assert hands.books.to_train() is None


# --- the end ---


def test_books_that_are_stopped_begin_nothing() -> None:
    hands = Hands(4)
    hands.stage("a")
    hands.pull("b")
    hands.begin_step()
    hands.books.stop()
    assert not hands.may_pull()
    assert hands.books.to_stage() is None
    assert hands.books.to_train() is None


def test_the_trainer_may_hold_what_it_was_given_and_has_not_trained() -> None:
    hands = Hands(1)
    hands.pull("a")
    assert not hands.trainer_may_hold_some()
    entry = hands.begin_staging()
    assert hands.trainer_may_hold_some()
    hands.books.fell_back(entry, "too late")
    assert hands.trainer_may_hold_some(), "its bytes may land"
    hands.begin_step()
    hands.train("a")
    assert not hands.trainer_may_hold_some()


def test_cleared_books_hold_nothing() -> None:
    hands = Hands(4)
    hands.stage("a", "b")
    hands.begin_step()
    hands.train("a")
    entry = hands.begin_training()
    hands.books.failed(entry, ValueError("b"))
    hands.books.clear()
    assert repr(hands.books) == "[], 0 results"
    assert (entry.payload, entry.failure, hands.failure()) == (None, None, None)


def test_books_of_many_show_the_first_eight() -> None:
    hands = Hands(10)
    hands.stage(*"abcdefghij")
    first = ", ".join(f"'{key}' staged" for key in "abcdefgh")
    assert repr(hands.books) == f"[{first} and 2 more], 0 results"
