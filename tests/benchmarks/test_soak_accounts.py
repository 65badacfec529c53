"""The soak's accounts: books that balance, and one that does not for each of its figures."""

from __future__ import annotations

import pytest

from forebay.benchmarks.soak_accounts import account, recoveries, troubles_of
from forebay.benchmarks.soak_evidence import Injected
from forebay.benchmarks.soak_faults import DAEMON, KILL, TRAINER, Fault
from forebay.benchmarks.soak_words import Did, Told

from .soak_books import Books


@pytest.fixture
def books() -> Books:
    """Books in which one key went all its way."""
    books = Books()
    books.staged("good")
    books.trained("good")
    books.did_with("good", Did.HEARD)
    books.told_of("good", Told.CONSUMED)
    return books


def test_books_of_a_run_without_faults_balance(books: Books) -> None:
    accounts = account(books.told, books.did)
    assert accounts.micro_batches == 1
    assert not accounts.lost
    assert not accounts.duplicated
    assert not accounts.wrong_bytes
    assert not accounts.retrained_after_death
    assert not accounts.reported_lost


# Lost.


def test_a_key_that_was_acknowledged_and_never_trained_is_lost(books: Books) -> None:
    books.staged("gone")
    assert account(books.told, books.did).lost == ("gone",)


def test_a_key_that_was_told_consumed_and_never_trained_is_lost(books: Books) -> None:
    books.told_of("gone", Told.ATTEMPT, Told.CONSUMED)
    assert account(books.told, books.did).lost == ("gone",)


def test_a_key_whose_training_never_ended_is_lost(books: Books) -> None:
    books.staged("gone")
    books.did_with("gone", Did.BEGIN)
    assert account(books.told, books.did).lost == ("gone",)


@pytest.mark.parametrize("what", [Told.LOST, Told.DROPPED])
def test_a_key_that_was_reported_by_name_is_not_lost(books: Books, what: Told) -> None:
    books.staged("gone")
    books.told_of("gone", what)
    accounts = account(books.told, books.did)
    assert accounts.lost == ()
    assert accounts.reported_lost == ("gone",)


def test_a_key_whose_staging_nobody_acknowledged_is_not_lost(books: Books) -> None:
    books.told_of("refused", Told.ATTEMPT, Told.REFUSED)
    assert account(books.told, books.did).lost == ()


# Trained twice.


def test_a_key_that_is_trained_twice_in_one_life_is_a_duplicate(books: Books) -> None:
    books.staged("twice")
    books.trained("twice")
    books.trained("twice")
    accounts = account(books.told, books.did)
    assert accounts.duplicated == ("twice",)
    assert accounts.micro_batches == 2


@pytest.mark.parametrize("known", ["orchestrator", "daemon"])
def test_a_key_that_is_trained_after_anybody_knew_it_consumed_is_a_duplicate(books: Books, known: str) -> None:
    books.staged("twice")
    books.trained("twice")
    if known == "daemon":
        books.did_with("twice", Did.HEARD)
    else:
        books.told_of("twice", Told.CONSUMED)
    books.trained("twice", life=2)
    accounts = account(books.told, books.did)
    assert accounts.duplicated == ("twice",)
    assert accounts.retrained_after_death == ()


def test_what_a_killed_trainer_had_in_hand_may_be_trained_by_the_next(books: Books) -> None:
    books.staged("again")
    books.did_with("again", Did.BEGIN)
    books.trained("again", life=2)
    books.did_with("again", Did.HEARD, life=2)
    accounts = account(books.told, books.did)
    assert accounts.retrained_after_death == ("again",)
    assert accounts.duplicated == ()


def test_a_trainer_that_left_in_order_answers_for_what_it_trained(books: Books) -> None:
    books.staged("again")
    books.trained("again")
    books.did_with("", Did.LEFT)
    books.trained("again", life=2)
    assert account(books.told, books.did).duplicated == ("again",)


def test_a_key_that_was_named_as_unheard_may_be_trained_by_the_next(books: Books) -> None:
    books.staged("again")
    books.trained("again")
    books.did_with("again", Did.UNHEARD)
    books.did_with("", Did.LEFT)
    books.trained("again", life=2)
    accounts = account(books.told, books.did)
    assert (accounts.duplicated, accounts.retrained_after_death) == ((), ("again",))


# Wrong bytes.


@pytest.mark.parametrize("moment", [Did.BEGIN, Did.END])
def test_other_bytes_than_were_staged_are_wrong_at_either_moment(books: Books, moment: Did) -> None:
    books.staged("bad")
    for what in (Did.BEGIN, Did.END):
        books.did_with("bad", what, digest="wrong" if what is moment else "right")
    assert account(books.told, books.did).wrong_bytes == ("bad",)


def test_a_key_that_nobody_staged_has_wrong_bytes(books: Books) -> None:
    books.did_with("whose", Did.BEGIN)
    assert account(books.told, books.did).wrong_bytes == ("whose",)


# Troubles.


def test_every_refusal_error_and_end_in_the_books_is_a_trouble(books: Books) -> None:
    books.told_of("a", Told.ATTEMPT)
    books.told_of("a", Told.REFUSED, code="no_slot", words="all are lent")
    books.told_of("a", Told.ERROR, code="BrokenError", words="no word")
    books.told_of("a", Told.LOST, words="its trainer died")
    books.did_with("", Did.ERROR)
    found = troubles_of({"orchestrator-0": books.told}, TRAINER, books.did)
    assert [(each.who, each.kind, each.name) for each in found] == [
        ("orchestrator-0", "refusal", "no_slot"),
        ("orchestrator-0", "error", "BrokenError"),
        ("orchestrator-0", "gone", "lost"),
        (TRAINER, "error", ""),
    ]
    assert found[0].words == "a: all are lent"
    assert [(each.life, each.key) for each in found] == [(1, "a")] * 3 + [(1, "")]


# Recovery.


def killed(at: float, victim: str) -> Injected:
    return Injected(at=at, fault=Fault(at_s=at, kind=KILL, victim=victim), over_at=at)


def test_recovery_is_told_by_fault_until_the_next_trained_micro_batch(books: Books) -> None:
    ends = [line.at for line in books.did if line.what is Did.END]
    injected = [killed(ends[0] - 2, DAEMON), killed(ends[0] - 1, DAEMON), killed(ends[0] + 1, TRAINER)]
    found = recoveries(injected, books.did)
    assert set(found) == {"kill daemon"}
    assert (found["kill daemon"].faults, found["kill daemon"].p50_s, found["kill daemon"].max_s) == (2, 1.5, 2.0)
