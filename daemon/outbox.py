"""What the ledger has decided since the loop last took it, and the counters of what it did."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

from forebay.shm import Outcome
from forebay.wire import Event, Gone, Reached, RefusalCode, Refused

from .actions import Action, Address, Level, Log, Reply, WriteOutcome
from .history import History


class Named(TypedDict, total=False):
    """The names of a micro-batch, where they are told."""

    queue: str
    key: str


class Outbox:
    """Actions for the loop, in order.

    Args:
        history: Keeps what is logged, also what is below the log's level.
        least_level: Of what is logged.

    Attributes:
        counters: How often what happened; shown in the status.
        now: Monotonic second of the event that the ledger is at.
        least_level: Of what is logged.
    """

    def __init__(self, history: History, least_level: int = Level.DEBUG) -> None:
        self.counters: Counter[str] = Counter()
        self.now = 0.0
        self.least_level = least_level
        self._history = history
        self._actions: list[Action] = []
        self._records: list[Action] = []

    def do(self, *actions: Action) -> None:
        """Adds actions for the loop."""
        self._actions.extend(actions)

    def record(self, outcome: Outcome) -> None:
        """Has something written into the journal, before anything else is done."""
        self._records.append(WriteOutcome(outcome))

    def reply(self, to: Address | None, message: Reached | Refused | Gone) -> None:
        """Answers a peer, if it is still known."""
        if to is not None:
            self.do(Reply(to, message))

    def refuse(
        self,
        to: Address | None,
        request_id: int,
        code: RefusalCode,
        words: str,
        *,
        queue: str = "",
        key: str = "",
        level: Level = Level.WARNING,
    ) -> None:
        """Refuses a request, for a micro-batch if one is named, and counts it."""
        self.counters[f"refused_{code}"] += 1
        about = {"queue": queue, "key": key} if key else {}
        self.log(level, Event.REFUSE, code=code.value, words=words, **about)
        self.reply(to, Refused(id=request_id, code=code, words=words))

    def ask_for_hello(self, to: Address, request_id: int) -> None:
        """Refuses what a peer says before its hello, and counts it.

        No moment and no line of the log: after a restart every request that waited for the daemon, and each of its
        repeats, is answered so, and would push out all that people want to know then.
        """
        code, words = RefusalCode.HELLO_FIRST, "say hello first; the daemon may have restarted"
        self.counters[f"refused_{code}"] += 1
        self.reply(to, Refused(id=request_id, code=code, words=words))

    def log(self, level: Level, event: Event, **fields: object) -> None:
        """Adds an event for the log, and for those who ask what happened."""
        self.log_fields(level, event, fields)

    def log_fields(self, level: Level, event: Event, fields: dict[str, object]) -> None:
        """Does the same with fields that are put together already, and are changed no more."""
        self._history.note(self.now, event, fields)
        if level >= self.least_level:
            self._actions.append(Log(level, event, fields))

    def take(self) -> list[Action]:
        """Returns what was decided since the last call.

        Outcomes come first: a daemon that is killed in the middle has then recorded what became of a micro-batch
        before its slot is free and before anybody was told.
        """
        actions, self._actions, self._records = [*self._records, *self._actions], [], []
        return actions
