"""Any history of calls: none runs twice, each that ran has one answer, and little is held."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from .call_history import History

pick = st.integers(0, 63)


class CallHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.history = History()

    @rule(client=pick, method=pick, size=pick)
    def call(self, client: int, method: int, size: int) -> None:
        self.history.call(client, method, size)

    @rule(client=pick, method=pick, size=pick)
    def a_call_is_lost(self, client: int, method: int, size: int) -> None:
        self.history.make(client, method, size)

    @rule(back=pick, connection=pick)
    def repeat(self, back: int, connection: int) -> None:
        self.history.deliver(back, connection)

    @rule(back=pick)
    def misdirect(self, back: int) -> None:
        self.history.misdirect(back)

    @rule(back=pick)
    def cancel(self, back: int) -> None:
        self.history.cancel(back)

    @rule(first=pick, count=pick)
    def bring(self, first: int, count: int) -> None:
        self.history.bring(first, count)

    @rule()
    def bring_all(self) -> None:
        self.history.bring_all()

    @rule(lane=pick, nbytes=pick)
    def end(self, lane: int, nbytes: int) -> None:
        self.history.end(lane, nbytes)

    @rule(seconds=pick)
    def pass_time(self, seconds: int) -> None:
        self.history.pass_time(seconds)

    @rule(is_so=pick)
    def run_out_of_memory(self, is_so: int) -> None:
        self.history.run_out_of_memory(is_so)

    def teardown(self) -> None:
        self.history.finish()


# To shrink a history that fails takes long: add Phase.shrink while looking for the cause.
CallHistories.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
TestCallHistories = CallHistories.TestCase


@pytest.mark.parametrize("first_seed", range(0, 2000, 500))
def test_no_history_of_thousands_runs_a_call_twice(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        rng, history = random.Random(seed), History()
        events: list[Callable[..., None]] = [
            *(history.call, history.call, history.make, history.deliver, history.deliver, history.misdirect),
            *(history.cancel, history.bring, history.bring_all, history.end, history.end, history.pass_time),
            history.run_out_of_memory,
        ]
        try:
            for _ in range(60):
                event = rng.choice(events)
                event(*(rng.randrange(64) for _ in range(event.__code__.co_argcount - 1)))
        finally:
            history.finish()
