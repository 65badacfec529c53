"""Resets, policy versions and expiries: what explains an end, and what was trained though it must not be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from forebay.benchmarks.soak_accounts import troubles_of
from forebay.benchmarks.soak_evidence import Evidence, Injected, Trouble
from forebay.benchmarks.soak_explained import explanation_of
from forebay.benchmarks.soak_faults import CUT, DAEMON, GARBAGE, KILL, STALL, STOP, TERM, TRAINER
from forebay.benchmarks.soak_party import Life
from forebay.benchmarks.soak_staleness import trained_anyway
from forebay.benchmarks.soak_words import STALE, Did, OrchestratorLine, Told, TrainerLine

from .soak_stories import HERE, THERE, hit, lives

NOTHING = hit(GARBAGE, "every port", 0.0)
"""A fault that explains nothing."""


def told(at: float, what: Told, key: str = "", **fields: Any) -> OrchestratorLine:
    return OrchestratorLine(at=at, life=1, key=key, what=what, **fields)


def staged(at: float, key: str = "a", **fields: Any) -> list[OrchestratorLine]:
    """A key that was staged at once."""
    return [told(at, Told.ATTEMPT, key, **fields), told(at + 0.1, Told.STAGED, key)]


def reset(at: float, answered_at: float | None = None) -> list[OrchestratorLine]:
    return [told(at, Told.RESET), told(at + 0.1 if answered_at is None else answered_at, Told.WAS_RESET)]


def advanced(at: float, version: int) -> list[OrchestratorLine]:
    lines = ((at, Told.ADVANCE), (at + 0.1, Told.ADVANCED))
    return [told(each, what, policy_version=version) for each, what in lines]


def did(at: float, what: Did, key: str = "a", life: int = 1) -> TrainerLine:
    return TrainerLine(at=at, life=life, key=key, what=what)


def evidence_of(
    here: Sequence[OrchestratorLine],
    *,
    there: Sequence[OrchestratorLine] = (),
    did: Sequence[TrainerLine] = (),
    injected: Sequence[Injected] = (),
    processes: dict[str, list[Life]] | None = None,
) -> Evidence:
    books = {who: sorted(lines, key=lambda line: line.at) for who, lines in ((HERE, here), (THERE, there))}
    return Evidence([NOTHING, *injected], processes or {}, books, sorted(did, key=lambda line: line.at))


def end_of_a(evidence: Evidence) -> Trouble:
    """The trouble that the last line of key `a` is, as the soak makes it of the books."""
    found = troubles_of(evidence.told, TRAINER, evidence.did)
    return [each for each in found if each.who == HERE and each.key == "a" and each.kind != "key"][-1]


def is_explained(here: Sequence[OrchestratorLine], **more: Any) -> bool:
    evidence = evidence_of(here, **more)
    return explanation_of(end_of_a(evidence), evidence) is not None


# Resets.

DROPPED_AT_20 = [told(20.0, Told.DROPPED, "a")]
ENDS = {
    "told to who waits": [*staged(10.0), *DROPPED_AT_20],
    "told to who stages": [told(10.0, Told.ATTEMPT, "a"), told(20.0, Told.DROPPED, "a")],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("whose", ["here", "there"])
def test_a_reset_by_anybody_explains_the_end_of_what_was_staged_before_it(end: str, whose: str) -> None:
    lines = {"here": ENDS[end], "there": []}
    lines[whose] = [*lines[whose], *reset(15.0)]
    assert is_explained(lines["here"], there=lines["there"])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("resets", [[], reset(5.0), reset(20.5)], ids=["none", "before", "after"])
def test_a_reset_explains_no_end_of_what_was_staged_after_it_or_had_ended_before(
    end: str, resets: list[OrchestratorLine]
) -> None:
    assert not is_explained(ENDS[end], there=resets)
    assert not is_explained([*ENDS[end], *resets])


def test_a_reset_that_was_under_way_explains_what_was_staged_meanwhile() -> None:
    late = hit(CUT, THERE, 5.0, 6.0, STALL)
    gave_up = [told(5.0, Told.RESET), told(8.5, Told.ERROR, code="BrokenError")]
    here = ENDS["told to who waits"]
    assert is_explained(here, there=reset(5.0, answered_at=12.0))
    assert is_explained(here, there=reset(9.0, answered_at=9.5))
    assert not is_explained(here, there=reset(9.4, answered_at=9.5))
    assert is_explained(here, there=gave_up, injected=[late])
    assert not is_explained(here, there=gave_up, injected=[hit(CUT, THERE, 5.0, 3.4, STALL)])
    assert not is_explained(here, there=[told(5.0, Told.RESET), told(8.9, Told.ERROR)])


def test_a_reset_whose_process_was_ended_may_come_only_as_long_as_it_was_on_its_way() -> None:
    here = ENDS["told to who waits"]
    for ended_at, expected in ((9.5, True), (8.9, False)):
        processes = {THERE: [Life(number=1, pid=1, began_at=0.1, at_work_at=0.1, ended_at=ended_at)]}
        there = [told(5.0, Told.RESET)]
        assert is_explained(here, there=there, processes=processes) == expected
        # What the next process says is no answer to it.
        later = OrchestratorLine(at=13.0, life=2, key="", what=Told.ADVANCE)
        assert is_explained(here, there=[*there, later], processes=processes) == expected


def test_a_reset_explains_the_first_call_of_a_key_only_if_the_last_was_told_that_it_is_there() -> None:
    first = [told(1.0, Told.ATTEMPT, "a"), told(4.0, Told.ERROR, "a", code="BrokenError")]
    there_already = [told(10.0, Told.ATTEMPT, "a"), told(10.1, Told.REFUSED, "a", code="in_use")]
    no_slot = [told(10.0, Told.ATTEMPT, "a"), told(10.1, Told.REFUSED, "a", code="no_slot")]
    assert is_explained([*first, *there_already, *DROPPED_AT_20], there=reset(5.0))
    assert not is_explained([*first, *staged(10.0), *DROPPED_AT_20], there=reset(5.0))
    assert not is_explained([*first, *no_slot, *staged(12.0), *DROPPED_AT_20], there=reset(5.0))
    # Either of two that got no answer may be the one that is there.
    second = [told(8.0, Told.ATTEMPT, "a"), told(9.0, Told.ERROR, "a", code="BrokenError")]
    assert is_explained([*first, *second, *there_already, *DROPPED_AT_20], there=reset(5.0))
    assert not is_explained([*first, *second, *no_slot, *DROPPED_AT_20], there=reset(5.0))


def test_what_the_daemon_knew_to_be_consumed_is_dropped_by_no_later_reset() -> None:
    here = ENDS["told to who waits"]
    assert not is_explained(here, there=reset(15.0), did=[did(12.0, Did.HEARD)])
    assert is_explained(here, there=reset(11.0), did=[did(12.0, Did.HEARD)])
    assert is_explained(here, there=reset(15.0), did=[did(12.0, Did.HEARD, key="b")])


@pytest.mark.parametrize("code", ["", STALE])
@pytest.mark.parametrize("what", [Did.TRANSFER, Did.BEGIN])
def test_what_is_on_the_device_is_dropped_only_once_that_trainer_was_ended(code: str, what: Did) -> None:
    here = [*staged(10.0, expires_s=1.0), told(20.0, Told.DROPPED, "a", code=code)]
    begun = [did(12.0, what)]
    assert is_explained(here, there=reset(15.0))
    assert not is_explained(here, there=reset(15.0), did=begun)
    assert is_explained(here, there=reset(15.0), did=begun, injected=[hit(KILL, TRAINER, 16.0)])
    assert is_explained(here, there=reset(15.0), did=[did(20.5, what)])
    for other in (hit(KILL, TRAINER, 16.0, life=2), hit(KILL, TRAINER, 21.0), hit(KILL, DAEMON, 16.0)):
        assert not is_explained(here, there=reset(15.0), did=begun, injected=[other])


# What is stale.


def stale_at_20(**fields: Any) -> list[OrchestratorLine]:
    return [*staged(10.0, **fields), told(20.0, Told.DROPPED, "a", code=STALE)]


def test_an_expiry_explains_an_end_from_its_second_on() -> None:
    assert is_explained(stale_at_20(expires_s=10.0))
    assert not is_explained(stale_at_20(expires_s=10.1))
    assert not is_explained(stale_at_20())


def test_the_expiry_of_a_call_before_explains_nothing_once_another_was_taken_in() -> None:
    before = [told(1.0, Told.ATTEMPT, "a", expires_s=12.0), told(4.0, Told.ERROR, "a", code="BrokenError")]
    assert not is_explained([*before, *stale_at_20(expires_s=12.0)])


def test_a_version_that_is_too_far_behind_explains_an_end_whoever_told_the_greater_one() -> None:
    tellings = (advanced(15.0, 6), advanced(5.0, 6), staged(15.0, "b", policy_version=6))
    for telling in tellings:
        assert is_explained(stale_at_20(policy_version=3), there=telling)
        assert not is_explained(stale_at_20(policy_version=4), there=telling)
        assert not is_explained(stale_at_20(), there=telling)


def test_a_version_that_was_told_only_afterwards_explains_nothing() -> None:
    assert not is_explained(stale_at_20(policy_version=3), there=advanced(20.1, 6))


def test_what_was_staged_tells_its_version_once_however_often_it_was_repeated() -> None:
    there = [told(4.0, Told.ATTEMPT, "b", policy_version=6), told(6.5, Told.STAGED, "b")]
    refused = [told(4.0, Told.ATTEMPT, "b", policy_version=6), told(6.5, Told.REFUSED, "b", code="no_slot")]
    cancelled = [told(6.4, Told.ATTEMPT, "b", policy_version=6), told(6.5, Told.CANCELLED, "b")]
    assert not is_explained(stale_at_20(policy_version=3), there=[*there, *reset(7.0)])
    assert is_explained(stale_at_20(policy_version=3), there=[*refused, *reset(7.0)])
    assert is_explained(stale_at_20(policy_version=3), there=[*cancelled, *reset(7.0)])


def test_a_version_that_a_reset_had_forgotten_explains_nothing() -> None:
    forgotten = [*advanced(2.0, 6), *reset(7.0)]
    assert not is_explained(stale_at_20(policy_version=3), there=forgotten)
    # Told anew, or by a call that may still have been under way, or not forgotten before the key was staged.
    assert is_explained(stale_at_20(policy_version=3), there=[*forgotten, *advanced(12.0, 6)])
    assert not is_explained(stale_at_20(policy_version=3), there=[*advanced(6.8, 6), *reset(7.0)])
    repeated = [told(6.0, Told.ADVANCE, policy_version=6), told(6.5, Told.ADVANCED, policy_version=6)]
    assert is_explained(stale_at_20(policy_version=3), there=[*repeated, *reset(7.0)])
    assert not is_explained(stale_at_20(policy_version=3), there=[*repeated, *reset(7.6)])
    assert is_explained(stale_at_20(policy_version=3), there=[*advanced(2.0, 6), *reset(7.0, answered_at=10.5)])
    assert is_explained(stale_at_20(policy_version=3), there=[*advanced(2.0, 6), *reset(15.0)])
    in_vain = [told(7.0, Told.RESET), told(7.1, Told.ERROR, code="BrokenError")]
    assert is_explained(stale_at_20(policy_version=3), there=[*advanced(2.0, 6), *in_vain])


def test_an_offer_that_is_stale_at_once_is_judged_by_the_same_rule() -> None:
    refused = [told(10.0, Told.ATTEMPT, "a", policy_version=3), told(10.1, Told.DROPPED, "a", code=STALE)]
    assert is_explained(refused, there=advanced(5.0, 6))
    assert not is_explained(refused, there=advanced(5.0, 5))


@pytest.mark.parametrize("code", ["", STALE])
def test_neither_a_reset_nor_staleness_explains_the_other(code: str) -> None:
    here = [*staged(10.0, expires_s=1.0), told(20.0, Told.DROPPED, "a", code=code)]
    assert is_explained(here, there=reset(15.0))
    assert is_explained(here) == (code == STALE)
    fresh = [*staged(10.0), told(20.0, Told.DROPPED, "a", code=code)]
    assert is_explained(fresh, there=reset(15.0)) == (code != STALE)


# What was trained anyway.


def wrongs(here: Sequence[OrchestratorLine], at: float, **more: Any) -> list[str]:
    """What is wrong with a transfer of key `a` that began at a second."""
    evidence = evidence_of(here, did=[did(at, Did.TRANSFER)], **more)
    found = trained_anyway(evidence)
    assert not any(explanation_of(trouble, evidence) for trouble in found)
    return [trouble.name for trouble in found]


@pytest.mark.parametrize(("what", "code"), [(Told.DROPPED, ""), (Told.DROPPED, STALE), (Told.LOST, "")])
def test_a_transfer_that_begins_after_its_key_was_told_gone_is_wrong(what: Told, code: str) -> None:
    here = [*staged(10.0), told(20.0, what, "a", code=code)]
    assert wrongs(here, 20.1) == [f"after it was told {what}"]
    assert wrongs(here, 19.9) == []
    assert wrongs([*staged(10.0), told(20.0, what, "b", code=code)], 20.1) == []


def test_a_transfer_of_what_had_expired_is_wrong_but_for_the_time_in_which_nobody_could_hear_of_it() -> None:
    here = staged(10.0, expires_s=5.0)
    assert wrongs(here, 15.9) == []
    assert wrongs(here, 16.1) == ["after it had expired"]
    for who in (HERE, DAEMON, TRAINER):
        assert wrongs(here, 17.9, injected=[hit(STOP, who, 12.0, 2.0)]) == []
        assert wrongs(here, 18.1, injected=[hit(STOP, who, 12.0, 2.0)]) == ["after it had expired"]
    assert wrongs(here, 17.9, injected=[hit(STOP, THERE, 12.0, 2.0)]) == ["after it had expired"]
    assert wrongs(here, 18.1, injected=[hit(STOP, TRAINER, 17.0, 9.0)]) == ["after it had expired"]
    # Two that are away at once are away no longer than one.
    both = [hit(STOP, DAEMON, 12.0, 2.0), hit(STOP, TRAINER, 12.5, 1.0)]
    assert wrongs(here, 18.1, injected=both) == ["after it had expired"]


def test_the_time_of_a_later_call_counts_from_its_own_begin() -> None:
    here = [told(5.0, Told.ATTEMPT, "a", expires_s=5.0), told(8.0, Told.ERROR), *staged(10.0, expires_s=5.0)]
    assert wrongs(here, 14.0) == []


def test_a_transfer_of_what_is_too_far_behind_a_version_that_the_daemon_had_confirmed_is_wrong() -> None:
    here = staged(10.0, policy_version=3)
    for telling in (advanced(12.0, 6), advanced(5.0, 6), advanced(9.5, 6)):
        assert wrongs(here, 14.0, there=telling) == ["though it was behind"]
    assert wrongs(here, 14.0, there=advanced(12.0, 5)) == []
    assert wrongs(here, 13.0, there=advanced(12.0, 6)) == []
    assert wrongs(staged(10.0), 14.0, there=advanced(12.0, 6)) == []
    unheard = [told(12.0, Told.ADVANCE, policy_version=6), told(12.1, Told.ERROR, code="BrokenError")]
    assert wrongs(here, 14.0, there=unheard) == []


def test_what_was_taken_in_though_it_was_behind_at_once_is_wrong_at_any_time() -> None:
    assert wrongs(staged(10.0, policy_version=3), 10.3, there=advanced(9.5, 6)) == ["though it was behind"]
    assert wrongs(staged(10.0, policy_version=3), 10.3, there=advanced(9.95, 6)) == []
    call = [told(10.0, Told.ATTEMPT, "a", policy_version=3), told(10.1, Told.REFUSED, "a", code="in_use")]
    assert wrongs(call, 10.3, there=advanced(9.5, 6)) == []
    assert wrongs(call, 10.7, there=advanced(9.5, 6)) == ["though it was behind"]


def test_a_version_binds_no_longer_than_the_daemon_knows_it_and_its_trainer_can_hear_of_it() -> None:
    here, told_6 = staged(10.0, policy_version=3), advanced(12.0, 6)
    assert wrongs(here, 14.0, there=[*told_6, *reset(13.0)]) == []
    assert wrongs(here, 14.0, there=[*told_6, *reset(14.1)]) == ["though it was behind"]
    assert wrongs(here, 14.0, there=[*reset(11.0, answered_at=11.5), *told_6]) == []
    assert wrongs(here, 14.0, there=[*reset(10.0, answered_at=10.5), *told_6]) == ["though it was behind"]
    assert wrongs(here, 14.0, there=[*reset(11.5), *told_6]) == ["though it was behind"]
    new = {DAEMON: lives(13.0)}
    for kind in (KILL, TERM):
        assert wrongs(here, 14.0, there=told_6, injected=[hit(kind, DAEMON, 12.5)], processes=new) == []
        early = {DAEMON: lives(11.0)}
        hits = [hit(kind, DAEMON, 10.5)]
        assert wrongs(here, 14.0, there=told_6, injected=hits, processes=early) == ["though it was behind"]
    for who, expected in ((TRAINER, []), (DAEMON, []), (HERE, ["though it was behind"])):
        assert wrongs(here, 14.0, there=told_6, injected=[hit(STOP, who, 12.5, 1.0)]) == expected


@pytest.mark.parametrize("first", [[], [told(10.1, Told.REFUSED, "a", code="no_slot")]])
def test_a_stale_call_replaces_nothing_so_that_what_an_earlier_one_may_have_staged_is_trained(
    first: list[OrchestratorLine],
) -> None:
    here = [told(10.0, Told.ATTEMPT, "a"), *first, told(19.9, Told.ATTEMPT, "a")]
    here.append(told(20.0, Told.DROPPED, "a", code=STALE))
    assert bool(wrongs(here, 20.1)) == bool(first), "only where the earlier call was refused"


def test_a_key_that_was_staged_and_then_told_stale_is_not_trained_though_an_earlier_call_got_no_answer() -> None:
    here = [told(10.0, Told.ATTEMPT, "a"), *staged(15.0), told(20.0, Told.DROPPED, "a", code=STALE)]
    assert wrongs(here, 20.1)
