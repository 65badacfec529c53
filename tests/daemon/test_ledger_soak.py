"""Thousands of histories of the ledger under the faults of a soak: nothing is lost, trained twice or stuck."""

from __future__ import annotations

import collections

import pytest

from forebay.benchmarks.soak_accounts import Accounts
from forebay.daemon.attaching import Attaching
from forebay.daemon.micro_batch import MicroBatch
from forebay.daemon.outcomes import Outcomes
from forebay.wire import MicroBatchEvent

from .ledger_soak import LedgerSoak

HISTORIES = 2000
PARTS = 8
FAULTS = {
    *(
        "kill orchestrator",
        "kill trainer",
        "kill daemon",
        "kill daemon in the middle",
        "end daemon",
        "trainer leaves",
    ),
    *("stop orchestrator", "stop trainer", "stop daemon", "cut", "cancel", "reset"),
}


def balanced(accounts: Accounts) -> bool:
    return not (accounts.lost or accounts.duplicated or accounts.wrong_bytes)


def run_histories(seeds: range) -> tuple[collections.Counter[str], list[int]]:
    """Returns what was seen in the histories of some seeds, and the seeds of those that do not balance."""
    seen: collections.Counter[str] = collections.Counter()
    bad = []
    for seed in seeds:
        soak = LedgerSoak(seed)
        accounts = soak.run()
        seen += soak.seen
        seen["histories"] += 1
        seen["trained"] += accounts.micro_batches
        if not balanced(accounts):
            bad.append(seed)
    return seen, bad


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_history_loses_a_key_trains_one_twice_or_leaves_a_slot_stuck(part: int) -> None:
    seen, bad = run_histories(range(part, HISTORIES, PARTS))
    assert bad == [], "run LedgerSoak(seed).run() for each of these seeds"
    assert seen["histories"] == HISTORIES // PARTS
    assert set(seen) >= FAULTS, "a fault never happened"
    assert seen["trained"] > seen["histories"]


# The histories can fail: each of these breaks the ledger once.


def first_failure(seeds: range) -> str:
    """Returns how the first history that fails does so."""
    for seed in seeds:
        try:
            accounts = LedgerSoak(seed).run()
        except AssertionError as error:
            return str(error)
        if not balanced(accounts):
            return f"lost {accounts.lost}, duplicated {accounts.duplicated}"
    return ""


def test_a_ledger_that_forgets_what_was_trained_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outcomes, "record", lambda *_arguments, **_fields: None)
    assert "duplicated ('o" in first_failure(range(100))


def test_a_ledger_that_takes_what_is_lost_for_trained_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    move = MicroBatch.move

    def hush(self: MicroBatch, event: MicroBatchEvent, now: float, reason: str = "") -> None:
        move(self, MicroBatchEvent.CONSUME if event is MicroBatchEvent.LOSE else event, now, reason)

    monkeypatch.setattr(MicroBatch, "move", hush)
    assert "lost ('o" in first_failure(range(100))


def test_a_ledger_that_never_hears_of_deaths_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attaching, "holder_free", lambda *_arguments: None)
    assert first_failure(range(100)).startswith("stuck: ")
