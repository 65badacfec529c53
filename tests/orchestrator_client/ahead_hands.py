"""The loop's books, and hands that do with them what the loop does."""

from __future__ import annotations

from forebay.orchestrator_client.ahead_books import AheadBooks
from forebay.orchestrator_client.ahead_states import Entry
from forebay.orchestrator_client.source import MicroBatch
from forebay.orchestrator_client.trained import Trained


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
