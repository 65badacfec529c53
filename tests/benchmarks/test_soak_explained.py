"""What explains a trouble of the soak: each rule takes what it should, and not its neighbour."""

from __future__ import annotations

import signal

import pytest

from forebay.benchmarks.soak_accounts import troubles_of
from forebay.benchmarks.soak_explained import EXPLANATIONS
from forebay.benchmarks.soak_faults import (
    CUT,
    DAEMON,
    DROP,
    FULL,
    KILL,
    ROLES,
    STALL,
    STOP,
    TERM,
    TRAINER,
)
from forebay.benchmarks.soak_party import Life
from forebay.benchmarks.soak_words import Did, OrchestratorLine, Told

from .soak_books import Books
from .soak_stories import HERE, THERE, Story, hit, lives

# Ends of processes.


@pytest.mark.parametrize("who", ROLES)
@pytest.mark.parametrize(("kind", "code"), [(KILL, -signal.SIGKILL), (TERM, 0)])
def test_an_end_is_explained_by_the_signal_to_that_very_process(who: str, kind: str, code: int) -> None:
    story = Story([hit(kind, who, 10.0, life=2)])
    assert story.explains("exit", str(code), 10.1, who, life=2)
    assert not story.explains("exit", str(code), 10.1, who, life=1)
    assert not story.explains("exit", str(code), 10.1, who, life=3)
    for other in set(ROLES) - {who}:
        assert not story.explains("exit", str(code), 10.1, other, life=2)


@pytest.mark.parametrize("who", ROLES)
@pytest.mark.parametrize("code", [-9, -15, -11, 0, 1, 2])
def test_an_end_of_nobodys_doing_is_unexplained_whoever_else_is_hit(who: str, code: int) -> None:
    others = [other for other in ROLES if other != who]
    story = Story([hit(kind, other, 10.0) for kind in (KILL, TERM, STOP) for other in others])
    assert not story.explains("exit", str(code), 10.1, who)


def test_a_stop_ends_nobody_and_neither_signal_explains_the_others_code() -> None:
    assert not Story([hit(STOP, DAEMON, 10.0, 2.0)]).explains("exit", "-9", 10.1, DAEMON)
    assert not Story([hit(TERM, DAEMON, 10.0)]).explains("exit", "-9", 10.1, DAEMON)
    assert not Story([hit(KILL, DAEMON, 10.0)]).explains("exit", "-15", 10.1, DAEMON)


def test_sigterm_may_end_only_who_was_not_at_work_yet() -> None:
    assert Story([hit(TERM, DAEMON, 10.0, was_at_work=False)]).explains("exit", "-15", 10.1, DAEMON)
    assert not Story([hit(TERM, DAEMON, 10.0)]).explains("exit", "-15", 10.1, DAEMON)
    twice = [hit(TERM, DAEMON, 10.0), hit(TERM, DAEMON, 10.9)]
    assert Story(twice).explains("exit", "-15", 11.0, DAEMON)
    assert not Story(twice).explains("exit", "-15", 10.5, DAEMON), "only one of them had come"


def test_a_full_mount_explains_the_end_of_a_daemon_that_started_meanwhile_alone() -> None:
    full = [hit(FULL, "pool", 10.0, 2.0, life=0)]
    failed = Life(number=1, pid=1, began_at=11.0, ended_at=12.5, code=1)
    assert Story(full, {DAEMON: [failed]}).explains("exit", "1", 12.5, DAEMON)
    for other in (
        Life(number=1, pid=1, began_at=11.0, ended_at=12.5, code=1, at_work_at=11.5),
        Life(number=1, pid=1, began_at=12.1, ended_at=12.5, code=1),
    ):
        assert not Story(full, {DAEMON: [other]}).explains("exit", "1", 12.5, DAEMON)


def test_a_trainer_ends_by_an_error_only_if_that_life_wrote_it() -> None:
    books = Books()
    books.did_with("", Did.ERROR)
    story = Story([hit(STOP, DAEMON, 10.0, 2.0)], books=books)
    assert story.explains("exit", "1", 10.1, TRAINER)
    assert not story.explains("exit", "1", 10.1, TRAINER, life=2)
    assert not story.explains("exit", "1", 10.1, DAEMON)
    assert not story.explains("exit", "1", 10.1, HERE)


# Answers about a key.


@pytest.mark.parametrize("cut_off_by", [Told.ERROR, Told.CANCELLED, Told.ATTEMPT, Told.STAGED])
def test_in_use_is_explained_by_an_earlier_call_that_may_have_been_carried_out(cut_off_by: Told) -> None:
    books = Books()
    books.told_of("a", Told.ATTEMPT, cut_off_by, Told.ATTEMPT, Told.REFUSED)
    books.told_of("b", Told.ATTEMPT, Told.REFUSED)
    story = Story([hit(CUT, HERE, 0.5, 9.0, STALL)], books=books)
    assert story.explains("refusal", "in_use", 4.0, key="a")
    assert not story.explains("refusal", "in_use", 6.0, key="b")


@pytest.mark.parametrize("code", ["in_use", "consumed"])
def test_a_first_call_and_one_after_a_refusal_were_not_carried_out_before(code: str) -> None:
    books = Books()
    books.trained("a")
    books.told_of("a", Told.ATTEMPT, Told.REFUSED, Told.ATTEMPT, Told.REFUSED)
    story = Story([hit(kind, who, 1.0) for kind in (KILL, CUT) for who in ROLES], books=books)
    assert not story.explains("refusal", code, 4.0, key="a")
    assert not story.explains("refusal", code, 6.0, key="a")


def test_consumed_is_explained_only_after_the_trainer_had_trained_that_key() -> None:
    books = Books()
    books.told_of("a", Told.ATTEMPT, Told.ERROR)
    books.trained("b")
    books.told_of("a", Told.ATTEMPT, Told.REFUSED)
    story = Story([hit(KILL, DAEMON, 0.5)], books=books)
    assert not story.explains("refusal", "consumed", 6.0, key="a")
    books.trained("a")
    assert not story.explains("refusal", "consumed", 6.0, key="a")
    assert story.explains("refusal", "consumed", 8.0, key="a")


def test_lost_is_explained_only_by_the_end_of_the_trainer_that_had_the_key() -> None:
    books = Books()
    books.staged("a")
    books.did_with("a", Did.BEGIN, life=2)
    assert Story([hit(KILL, TRAINER, 4.0, life=2)], books=books).explains("gone", "lost", 5.0, key="a")
    for other in (
        hit(KILL, TRAINER, 4.0, life=1),
        hit(KILL, TRAINER, 6.0, life=2),
        hit(STOP, TRAINER, 4.0, life=2),
        hit(KILL, DAEMON, 4.0, life=2),
    ):
        assert not Story([other], books=books).explains("gone", "lost", 5.0, key="a")


def test_what_waited_on_the_device_is_lost_by_an_end_since_it_was_staged() -> None:
    books = Books()
    books.told_of("other", Told.ATTEMPT, Told.STAGED)
    books.staged("a")
    assert Story([hit(TERM, TRAINER, 4.5)], books=books).explains("gone", "lost", 5.0, key="a")
    assert not Story([hit(TERM, TRAINER, 2.5)], books=books).explains("gone", "lost", 5.0, key="a")


# Waits that were in vain.


def since(*seconds: float) -> Books:
    """A book in which the calls of a key `w` began at some seconds."""
    books = Books()
    books.told = [
        OrchestratorLine(at=at, life=1, key="w", what=what)
        for at in seconds
        for what in (Told.ATTEMPT, Told.STAGED)
    ]
    return books


CONCERNED = {
    "no_slot": {DAEMON, TRAINER, HERE},
    "BrokenError": {DAEMON, HERE},
    "WaitTimeoutError": {DAEMON, TRAINER, HERE},
}
WAITED_S = {"no_slot": 10.0, "BrokenError": 3.0, "WaitTimeoutError": 15.0}


def kind_of(name: str) -> str:
    return "refusal" if name == "no_slot" else "error"


@pytest.mark.parametrize("name", CONCERNED)
@pytest.mark.parametrize("victim", ROLES)
def test_a_wait_in_vain_is_explained_by_those_concerned_who_were_away_for_it(name: str, victim: str) -> None:
    begin = 100 - WAITED_S[name]
    story = Story([hit(STOP, victim, begin, WAITED_S[name])], books=since(begin))
    assert story.explains(kind_of(name), name, 100.0, key="w") == (victim in CONCERNED[name])


@pytest.mark.parametrize("name", CONCERNED)
def test_a_wait_in_vain_is_explained_by_its_own_wire_and_not_by_anothers(name: str) -> None:
    begin = 100 - WAITED_S[name]
    for how, victim, is_explained in ((STALL, HERE, True), (STALL, THERE, False), (DROP, HERE, False)):
        story = Story([hit(CUT, victim, begin, WAITED_S[name], how)], books=since(begin))
        assert story.explains(kind_of(name), name, 100.0, key="w") == is_explained


@pytest.mark.parametrize("name", CONCERNED)
def test_a_wait_with_time_enough_for_what_was_waited_for_is_unexplained(name: str) -> None:
    waited_s = WAITED_S[name]
    begin, calm_s = 100 - waited_s, 1.1 if name == "BrokenError" else 2.1
    # Away for all of it but for a calm, at its begin or its end.
    late, early = hit(STOP, DAEMON, begin + calm_s, waited_s), hit(STOP, DAEMON, begin, waited_s - calm_s)
    assert not Story([late], books=since(begin)).explains(kind_of(name), name, 100.0, key="w")
    assert not Story([early], books=since(begin)).explains(kind_of(name), name, 100.0, key="w")
    assert Story([late, early], books=since(begin)).explains(kind_of(name), name, 100.0, key="w")


@pytest.mark.parametrize("name", CONCERNED)
def test_a_wait_that_was_given_up_too_early_is_unexplained_whoever_is_away(name: str) -> None:
    away = [hit(STOP, DAEMON, 0.0, 100.0)]
    begin = 100 - WAITED_S[name]
    assert Story(away, books=since(1.0, begin)).explains(kind_of(name), name, 100.0, key="w")
    assert not Story(away, books=since(1.0, begin + 0.2)).explains(kind_of(name), name, 100.0, key="w")


def test_while_the_daemon_stays_silent_the_next_calls_may_fail_at_once() -> None:
    books = since(0.0, 99.5)
    books.told.append(OrchestratorLine(at=99.0, life=1, key="v", what=Told.ERROR, code="BrokenError"))
    away = hit(STOP, DAEMON, 90.0, 10.0)
    assert Story([away], books=books).explains("error", "BrokenError", 100.0, key="w")
    assert not Story([away], books=books).explains("error", "BrokenError", 100.0, key="w", life=2)
    assert not Story([away], books=since(0.0, 99.5)).explains("error", "BrokenError", 100.0, key="w")


@pytest.mark.parametrize(("waited_s", "is_explained"), [(3.1, True), (1.0, False)])
def test_calls_that_fail_in_one_turn_are_explained_by_the_one_that_waited(
    waited_s: float, *, is_explained: bool
) -> None:
    books = since(0.0, 98.5)
    fails_at = 100.001
    books.told.append(OrchestratorLine(at=fails_at - waited_s, life=1, key="v", what=Told.ATTEMPT))
    books.told.append(OrchestratorLine(at=fails_at, life=1, key="v", what=Told.ERROR, code="BrokenError"))
    story = Story([hit(STOP, DAEMON, 90.0, 11.0)], books=books)
    assert story.explains("error", "BrokenError", 100.0, key="w") == is_explained
    back = Story([hit(STOP, DAEMON, 90.0, 8.9)], books=books)
    assert not back.explains("error", "BrokenError", 100.0, key="w")


def test_an_orchestrator_may_wait_for_a_connection_only_for_as_long_as_that() -> None:
    assert Story([hit(STOP, DAEMON, 90.0, 10.0)]).explains("error", "WaitTimeoutError", 100.0)
    assert not Story([hit(STOP, DAEMON, 92.1, 10.0)]).explains("error", "WaitTimeoutError", 100.0)
    assert not Story([hit(STOP, TRAINER, 90.0, 10.0)]).explains("error", "WaitTimeoutError", 100.0)


def test_who_was_killed_is_away_until_its_next_life_is_at_work() -> None:
    kill = [hit(KILL, DAEMON, 10.0)]
    for back_at, at, is_explained in ((16.0, 16.0, True), (12.0, 16.0, False), (16.0, 9.9, False)):
        story = Story(kill, {DAEMON: lives(back_at)}, since(1.0))
        assert story.explains("error", "BrokenError", at, key="w") == is_explained


def test_a_trainer_may_fail_to_attach_only_to_a_daemon_that_is_away_and_before_it_is_at_work() -> None:
    new = {TRAINER: [Life(number=1, pid=1, began_at=79.0, ended_at=100.5, code=1)]}
    away = [hit(STOP, DAEMON, 80.0, 20.0)]
    assert Story(away, new).explains("error", "WaitTimeoutError", 100.0, TRAINER)
    assert not Story(away, {TRAINER: lives()}).explains("error", "WaitTimeoutError", 100.0, TRAINER)
    assert not Story([hit(STOP, HERE, 80.0, 20.0)], new).explains("error", "WaitTimeoutError", 100.0, TRAINER)
    assert not Story([hit(STOP, DAEMON, 83.1, 20.0)], new).explains("error", "WaitTimeoutError", 100.0, TRAINER)


def test_a_trainer_may_leave_unheard_only_if_told_to_and_while_the_daemon_is_away() -> None:
    told, away = hit(TERM, TRAINER, 97.0), hit(STOP, DAEMON, 98.0, 2.0)
    assert Story([told, away]).explains("error", "BrokenError", 100.0, TRAINER)
    assert not Story([told, away]).explains("error", "BrokenError", 100.0, TRAINER, life=2)
    assert not Story([away]).explains("error", "BrokenError", 100.0, TRAINER)
    later = {TRAINER: lives(97.5)}
    assert not Story([told, hit(STOP, DAEMON, 94.0, 4.9)], later).explains("error", "BrokenError", 100.0, TRAINER)


# What a daemon says that is new, or about to end.


def test_a_key_is_unknown_only_to_a_new_daemon_until_its_trainer_is_back() -> None:
    started = {DAEMON: lives(12.0), TRAINER: lives(20.0)}
    killed = [hit(KILL, DAEMON, 10.0)]
    story = Story(killed, started, since(5.0))
    assert story.explains("refusal", "unknown_key", 13.0, key="w")
    assert not story.explains("refusal", "unknown_key", 9.0, key="w")
    assert not story.explains("refusal", "unknown_key", 15.1, key="w")
    with_trainer = Story([*killed, hit(KILL, TRAINER, 11.0)], started, since(5.0))
    assert with_trainer.explains("refusal", "unknown_key", 21.0, key="w")
    assert not with_trainer.explains("refusal", "unknown_key", 23.1, key="w")
    only_trainer = Story([hit(KILL, TRAINER, 11.0)], started, since(5.0))
    assert not only_trainer.explains("refusal", "unknown_key", 13.0, key="w")


def test_a_key_that_the_new_daemon_acknowledged_or_that_nobody_did_is_not_unknown() -> None:
    for books in (since(12.5), Books()):
        story = Story([hit(KILL, DAEMON, 10.0)], {DAEMON: lives(12.0)}, books)
        assert not story.explains("refusal", "unknown_key", 13.0, key="w")


def test_only_a_daemon_that_was_told_to_end_is_draining() -> None:
    ended = {DAEMON: [Life(number=1, pid=1, began_at=1.0, at_work_at=2.0, ended_at=11.5), *lives(13.0)[1:]]}
    assert Story([hit(TERM, DAEMON, 10.0)], ended).explains("refusal", "draining", 11.0)
    assert not Story([hit(TERM, DAEMON, 10.0)], ended).explains("refusal", "draining", 12.6)
    late = [hit(TERM, DAEMON, 10.0), hit(CUT, HERE, 11.0, 3.0, STALL)]
    assert Story(late, ended).explains("refusal", "draining", 14.1)
    assert not Story(late, ended).explains("refusal", "draining", 14.1, THERE)
    for other in (hit(KILL, DAEMON, 10.0), hit(TERM, TRAINER, 10.0)):
        assert not Story([other], ended).explains("refusal", "draining", 11.0)


def test_only_a_full_mount_has_no_room() -> None:
    full = Story([hit(FULL, "pool", 10.0, 2.0, life=0)])
    assert full.explains("refusal", "shm_full", 11.0)
    assert not full.explains("refusal", "shm_full", 14.0)
    assert not Story([hit(STOP, DAEMON, 10.0, 2.0)]).explains("refusal", "shm_full", 11.0)


# What nothing explains.


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("error", "LocalError"),
        ("error", "ProtocolError"),
        ("refusal", "bad_manifest"),
        ("gone", "dropped"),
        ("gone", "stale"),
        ("trained", "after it was told dropped"),
        ("stranger", "let_in"),
        ("key", "open"),
        ("log", "ERROR"),
        ("log", "watchdog"),
    ],
)
def test_what_is_not_listed_is_never_explained(kind: str, name: str) -> None:
    story = Story([hit(fault, who, 10.0, 5.0) for fault in (KILL, TERM, STOP) for who in ROLES])
    for who in (*ROLES, "soak"):
        assert not story.explains(kind, name, 11.0, who)


def test_nothing_is_explained_where_nothing_was_injected() -> None:
    books = Books()
    books.told_of("a", Told.ATTEMPT, Told.ERROR)
    books.trained("a")
    books.told_of("a", Told.ATTEMPT, Told.REFUSED)
    books.did_with("", Did.ERROR)
    story = Story(books=books)
    for explanation in EXPLANATIONS:
        for who in ROLES:
            assert not story.explains(explanation.kind, explanation.name, 7.0, who, key="a")


def test_a_key_that_was_never_told_an_outcome_is_unexplained() -> None:
    books = Books()
    books.staged("open")
    books.trained("open")
    (found,) = troubles_of({HERE: books.told}, TRAINER, books.did)
    assert (found.kind, found.name, found.words) == ("key", "open", "open: no outcome was ever told")
    story = Story([hit(KILL, victim, found.at) for victim in ROLES], books=books)
    assert not story.explains(found.kind, found.name, found.at)
