"""The loop's decisions, without a loop: what may be pulled, staged and trained next."""

from __future__ import annotations

import pytest

from forebay.orchestrator_client.ahead_states import AheadState
from forebay.orchestrator_client.source import MicroBatch
from forebay.wire import UsageError

from .ahead_hands import Hands, trained_of

S = AheadState


# --- pulling ---


def test_nothing_is_pulled_while_one_waits_for_room() -> None:
    hands = Hands(1)
    hands.stage("a")
    hands.pull("b")
    assert hands.books.to_stage() is None
    assert not hands.may_pull()
    hands.begin_step()
    hands.begin_training()
    assert not hands.may_pull()
    hands.begin_staging()
    assert hands.may_pull()


def test_nothing_is_pulled_while_one_is_to_go_inline_until_it_is_sent() -> None:
    hands = Hands(0)
    hands.pull("a")
    assert not hands.may_pull()
    hands.begin_step()
    entry = hands.begin_training()
    assert entry.state is S.SENDING
    assert not hands.may_pull()
    hands.books.sent(entry, 3.0)
    assert hands.may_pull()
    assert entry.payload is None
    assert entry.sent_at == 3.0


def test_that_bytes_are_sent_may_be_told_too_late_and_changes_nothing_then() -> None:
    hands = Hands(0)
    hands.pull("a")
    hands.begin_step()
    entry = hands.begin_training()
    hands.books.sent(entry, 3.0)
    hands.books.sent(entry, 4.0)
    assert (entry.state, entry.sent_at) == (S.SENT, 3.0)
    hands.books.trained(entry, trained_of(entry), 5.0)
    hands.books.sent(entry, 6.0)
    assert entry.state is S.TRAINED


def test_of_a_source_that_ended_or_failed_nothing_is_pulled() -> None:
    ended, failed = Hands(), Hands()
    ended.books.source_ended()
    failed.books.source_failed(ValueError("x"))
    assert not ended.may_pull()
    assert not failed.may_pull()


def test_what_is_refused_at_the_pull_changes_nothing() -> None:
    hands = Hands()
    hands.pull("a")
    hands.begin_staging()
    before = repr(hands.books)
    for wrong in (MicroBatch(object(), "a"), {"key": "b"}, None):
        with pytest.raises(UsageError):
            hands.books.pulled(wrong, (0.0, 0.0))  # type: ignore[arg-type]
        assert repr(hands.books) == before
    hands.pull("b")
    assert hands.may_pull() is False


# --- staging ---


def test_they_are_staged_in_order_one_at_a_time_while_there_is_room() -> None:
    hands = Hands(2)
    hands.pull("a")
    first = hands.begin_staging()
    hands.pull("b")
    assert hands.books.to_stage() is None, "one at a time"
    hands.books.staged(first)
    assert hands.begin_staging().key == "b"
    hands.pull("c")
    assert hands.books.to_stage() is None, "no room"


def test_one_in_training_counts_no_more_towards_the_room() -> None:
    hands = Hands(1)
    hands.stage("a")
    hands.pull("b")
    hands.begin_step()
    hands.begin_training()
    assert hands.begin_staging().key == "b"


def test_one_that_fell_back_counts_no_more_towards_the_room() -> None:
    hands = Hands(1)
    hands.pull("a")
    first = hands.begin_staging()
    hands.pull("b")
    hands.books.fell_back(first, "refused")
    assert hands.begin_staging().key == "b"
    assert first.report.fallbacks == [("a", "refused")]


def test_without_crossing_one_is_staged_only_when_its_step_has_begun() -> None:
    hands = Hands(4, across_steps=False)
    hands.pull("A")
    assert hands.books.to_stage() is None
    hands.begin_step()
    entry = hands.begin_staging()
    hands.pull("b")
    hands.books.staged(entry)
    assert hands.books.to_stage() is None
    hands.train("A")
    hands.take("A")
    hands.begin_step()
    assert hands.begin_staging().key == "b"


def test_one_is_early_until_its_step_begins() -> None:
    hands = Hands(4)
    hands.pull("A")
    first = hands.begin_staging()
    hands.pull("b")
    assert hands.books.is_early(first)
    hands.begin_step()
    assert not hands.books.is_early(first)
    hands.books.staged(first)
    entry = hands.books.to_stage()
    assert entry is not None
    assert hands.books.is_early(entry)


def test_one_that_is_held_back_is_never_staged_and_counts_in_its_step() -> None:
    hands = Hands(4)
    hands.pull("a")
    entry = hands.books.to_stage()
    assert entry is not None
    hands.books.held_back(entry)
    assert hands.books.to_stage() is None
    assert not hands.may_pull()
    assert entry.report.held_back == 1
    hands.begin_step()
    assert hands.begin_training() is entry
    assert entry.state is S.SENDING


def test_a_trainer_that_stages_nothing_has_no_room() -> None:
    hands = Hands(4)
    hands.books.stages_nothing()
    hands.pull("a")
    assert hands.books.to_stage() is None


# --- training ---


def test_the_first_in_order_is_trained_when_its_step_has_begun_and_it_is_there() -> None:
    hands = Hands(4)
    hands.stage("a", "b")
    assert hands.books.to_train() is None, "no step has begun"
    hands.begin_step()
    hands.begin_training()
    assert hands.books.to_train() is None, "one at a time"


def test_one_that_is_being_staged_is_waited_for_though_the_next_could_go() -> None:
    hands = Hands(4)
    hands.pull("a")
    first = hands.begin_staging()
    hands.begin_step()
    assert hands.books.to_train() is None
    hands.books.staged(first)
    assert hands.begin_training() is first


def test_the_next_steps_micro_batches_wait_for_their_step() -> None:
    hands = Hands(4)
    hands.stage("A", "b")
    hands.begin_step()
    hands.train("A")
    assert hands.books.to_train() is None
    hands.take("A")
    hands.begin_step()
    hands.train("b")


def test_a_lost_one_is_trained_inline_before_all_others() -> None:
    hands = Hands(4)
    hands.stage("a", "b")
    hands.begin_step()
    entry = hands.begin_training()
    hands.books.fell_back(entry, "lost")
    assert hands.begin_training() is entry
    assert entry.state is S.SENDING
    assert entry.payload is not None
