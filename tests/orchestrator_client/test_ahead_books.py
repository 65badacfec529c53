"""The loop's decisions, without a loop: what may be pulled, staged and trained, and what the caller hears."""

from __future__ import annotations

import itertools

import pytest

from forebay.orchestrator_client.ahead_books import AheadBooks
from forebay.orchestrator_client.ahead_states import AHEAD_TRANSITIONS, AheadEvent, AheadState, Entry
from forebay.orchestrator_client.source import MicroBatch, Upcoming
from forebay.orchestrator_client.step_report import StepReport
from forebay.orchestrator_client.trained import Trained
from forebay.wire import LocalError, UsageError

S, E = AheadState, AheadEvent


def trained_of(entry: Entry) -> Trained:
    return Trained(key=entry.key, value=None, source="staged", wait_s=0, dispatch_s=0, ready_s=1, idle_s=0)


class Hands:
    """Books, and hands that do one thing at a time."""

    def __init__(self, max_staged: int = 2, *, across_steps: bool = True) -> None:
        self.books = AheadBooks(max_staged, across_steps=across_steps, run="run")

    def pull(self, *keys: str) -> None:
        """Pulls micro-batches; one in capitals ends its step."""
        for key in keys:
            assert self.may_pull()
            self.books.pulled(MicroBatch(object(), key, ends_step=key.isupper()), (0.0, 0.0))

    def begin_staging(self) -> Entry:
        entry = self.books.to_stage()
        assert entry is not None
        self.books.stages(entry)
        return entry

    def stage(self, *keys: str) -> None:
        for key in keys:
            self.pull(key)
            entry = self.begin_staging()
            assert entry.key == key
            self.books.staged(entry)

    def begin_step(self, now: float = 0.0) -> None:
        self.books.begin_step(now)
        self.books.give_step()

    def begin_training(self) -> Entry:
        entry = self.books.to_train()
        assert entry is not None
        self.books.trains(entry, 0.0)
        return entry

    def train(self, *keys: str) -> None:
        for key in keys:
            entry = self.begin_training()
            assert entry.key == key
            self.books.trained(entry, trained_of(entry), 1.0)

    def take(self, *keys: str) -> None:
        for key in keys:
            result = self.books.take_result()
            assert result is not None
            assert result.key == key

    # Methods, not properties: mypy would take them to be the same at each call.

    def may_pull(self) -> bool:
        return self.books.may_pull

    def is_over(self) -> bool:
        return self.books.step_is_over

    def trainer_may_hold_some(self) -> bool:
        return self.books.trainer_may_hold_some

    def failure(self) -> Exception | None:
        return self.books.failure


# --- one micro-batch ---


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


def test_a_micro_batch_ends_trained_or_failed_and_every_state_is_reached() -> None:
    ends = set(AheadState) - {state for state, _ in AHEAD_TRANSITIONS}
    assert ends == {S.TRAINED, S.FAILED}
    assert set(AHEAD_TRANSITIONS.values()) | {S.PULLED} == set(AheadState)


def test_a_payload_is_let_go_when_its_bytes_are_elsewhere_for_good() -> None:
    let_go = set()
    for (state, event), after in AHEAD_TRANSITIONS.items():
        entry = entry_in(state)
        entry.apply(event)
        if entry.payload is None:
            let_go.add(after)
    assert let_go == {S.SENT, S.TRAINED, S.FAILED}


def test_neither_an_entry_nor_what_the_predicate_sees_shows_the_payload() -> None:
    entry = entry_in(S.PULLED)
    entry.payload = "secret"
    assert repr(entry) == "Entry('a', pulled)"
    assert repr(entry.upcoming()) == "Upcoming(step=0, index=0, key='a', ends_step=False)"
    assert entry.upcoming().payload == "secret"


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
