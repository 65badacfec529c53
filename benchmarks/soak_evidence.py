"""What a run knows of itself: what was hit and when it was back, and what the books say, to judge a trouble by."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from forebay.wire import RefusalCode

from .soak_faults import CUT, DROP, KILL, STOP, TERM, TRAINER, Fault
from .soak_party import Life
from .soak_words import Did, OrchestratorLine, Told, TrainerLine

POOL: Final = "pool"
"""The victim of a fill."""


def wire_of(orchestrator: str) -> str:
    """Names the connections of an orchestrator, as a party that may be away."""
    return f"wire of {orchestrator}"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that does not happen while nothing is wrong.

    Attributes:
        at: Monotonic second.
        who: The process that met it.
        kind: `refusal`, `error`, `gone`, `key`, `exit` or `log`.
        name: Code of a refusal, class of an error, state of what is gone, exit code.
        words: What was said.
        life: Which of the processes of `who`, from 1 on; 0 if that is not known.
        key: The key that it is about; empty if it is about none.
    """

    at: float
    who: str
    kind: str
    name: str
    words: str = ""
    life: int = 0
    key: str = ""


class Injected(msgspec.Struct, kw_only=True):
    """A fault that was injected.

    Attributes:
        at: Monotonic second.
        fault: What it was.
        over_at: Monotonic second at which what lasts was over; until then the one that was planned.
        life: Which life of the victim a signal hit; 0 if the fault is no signal.
        was_at_work: Whether that life had said that it is at work.
    """

    at: float
    fault: Fault
    over_at: float
    life: int = 0
    was_at_work: bool = False


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """A time for which a fault kept a party away.

    Attributes:
        who: A process, or the wire of an orchestrator.
        kind: Of the fault.
        begin: Monotonic second.
        end: Monotonic second at which it was back: let go on, or at work anew.
    """

    who: str
    kind: str
    begin: float
    end: float


class Evidence:
    """All that a trouble is judged by.

    Args:
        injected: Every fault that was.
        lives: The processes of each party.
        told: The lines of each orchestrator, in order.
        did: The lines of the trainer, in order.

    Attributes:
        injected: As it was given.
        did: As it was given.
        told: As it was given.
        absences: What the faults made of it.
    """

    def __init__(
        self,
        injected: Sequence[Injected],
        lives: Mapping[str, Sequence[Life]],
        told: Mapping[str, Sequence[OrchestratorLine]],
        did: Sequence[TrainerLine],
    ) -> None:
        self.injected = injected
        self.did = did
        self.told = told
        self._lives = lives
        self.absences = tuple(self._find_absences())
        self._away: dict[frozenset[str], list[tuple[float, float]]] = {}
        self._did_of: dict[str, list[TrainerLine]] = {}
        for did_line in did:
            self._did_of.setdefault(did_line.key, []).append(did_line)
        self._told_of: dict[tuple[str, str], list[OrchestratorLine]] = {}
        for who, lines in told.items():
            for line in lines:
                self._told_of.setdefault((who, line.key), []).append(line)

    def _find_absences(self) -> Iterator[Absence]:
        for each in self.injected:
            kind, victim = each.fault.kind, each.fault.victim
            if kind in (KILL, TERM):
                later = [life.at_work_at for life in self._lives.get(victim, ()) if life.number > each.life]
                back_at = next((at for at in later if at), float("inf"))
                yield Absence(who=victim, kind=kind, begin=each.at, end=back_at)
            elif kind == STOP:
                yield Absence(who=victim, kind=kind, begin=each.at, end=each.over_at)
            elif kind == CUT and each.fault.how != DROP:
                # What is dropped is dialled again at once.
                yield Absence(who=wire_of(victim), kind=kind, begin=each.at, end=each.over_at)

    def longest_calm_s(
        self, parties: Collection[str], begin: float, end: float, *, enough_s: float = math.inf
    ) -> float:
        """Returns the longest time between two seconds in which none of some parties was away.

        Args:
            parties: Processes and wires.
            begin: Monotonic second.
            end: Monotonic second.
            enough_s: Whatever is longer serves as well as the longest.
        """
        longest_s, calm_since = 0.0, begin
        for went_at, back_at in self._away_between(parties, begin, end):
            longest_s = max(longest_s, went_at - calm_since)
            if longest_s > enough_s:
                return longest_s
            calm_since = back_at
        return max(longest_s, end - calm_since)

    def away_s(self, parties: Collection[str], begin: float, end: float) -> float:
        """Returns for how much of the time between two seconds at least one of some parties was away."""
        between = self._away_between(parties, begin, end)
        return sum(max(0.0, min(back_at, end) - max(went_at, begin)) for went_at, back_at in between)

    def _away_between(self, parties: Collection[str], begin: float, end: float) -> Iterator[tuple[float, float]]:
        """Yields the times between two seconds in which at least one of some parties was away, none twice."""
        away = self._away_of(frozenset(parties))
        first = bisect.bisect_right(away, begin, key=lambda each: each[1])
        return itertools.takewhile(lambda each: each[0] < end, itertools.islice(away, first, None))

    def _away_of(self, parties: frozenset[str]) -> list[tuple[float, float]]:
        if parties not in self._away:
            merged: list[tuple[float, float]] = []
            for went_at, back_at in sorted(
                (each.begin, each.end) for each in self.absences if each.who in parties
            ):
                if merged and went_at <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(merged[-1][1], back_at))
                else:
                    merged.append((went_at, back_at))
            self._away[parties] = merged
        return self._away[parties]

    def faults(self, victim: str, *kinds: str, until: float) -> list[Injected]:
        """Returns the faults of some kinds that a victim had met by a second."""
        return [
            each
            for each in self.injected
            if each.fault.kind in kinds and each.fault.victim == victim and each.at <= until
        ]

    def life(self, who: str, number: int) -> Life | None:
        """Returns a process of a party; None if there was none of that number."""
        return next((life for life in self._lives.get(who, ()) if life.number == number), None)

    def end_of(self, who: str, number: int) -> float:
        """Returns the monotonic second at which a process ended; infinite if it never did."""
        life = self.life(who, number)
        return life.ended_at if life is not None and life.ended_at else float("inf")

    def book_of(self, trouble: Trouble) -> list[OrchestratorLine]:
        """Returns what its orchestrator had written of a trouble's key until then, with the trouble itself."""
        return [line for line in self._told_of.get((trouble.who, trouble.key), ()) if line.at <= trouble.at]

    def did_of(self, key: str) -> Sequence[TrainerLine]:
        """Returns what the trainer had written of a key, in order."""
        return self._did_of.get(key, ())

    def took_s(self, trouble: Trouble) -> float:
        """Returns the seconds since the line before of a trouble's key, at which its call began; 0 without one."""
        before = [line.at for line in self.book_of(trouble) if line.at < trouble.at]
        return trouble.at - max(before, default=trouble.at)

    def other_errors(self, trouble: Trouble) -> list[Trouble]:
        """Returns all the same trouble that the same process met beside it, with any key."""
        return [
            msgspec.structs.replace(trouble, at=line.at, key=line.key)
            for line in self.told.get(trouble.who, ())
            if (line.life, line.code) == (trouble.life, trouble.name)
            and (line.at, line.key) != (trouble.at, trouble.key)
        ]

    def acknowledged_at(self, trouble: Trouble) -> float:
        """Returns when the daemon last said that it has a trouble's key; infinite if it never did."""
        said = [
            line.at
            for line in self.book_of(trouble)
            if line.what is Told.STAGED or line.code == RefusalCode.IN_USE
        ]
        return max(said, default=float("inf"))

    def was_carried_out_before(self, trouble: Trouble) -> bool:
        """Tells whether a call before the last may have been carried out: it got no answer, or it was staged."""
        lines = self.book_of(trouble)
        last_call = max((at for at, line in enumerate(lines) if line.what is Told.ATTEMPT), default=0)
        return any(
            call.what is Told.ATTEMPT and answer.what is not Told.REFUSED
            for call, answer in itertools.pairwise(lines[: last_call + 1])
        )

    def was_trained_before(self, trouble: Trouble) -> bool:
        """Tells whether the trainer had trained a trouble's key to its end."""
        return any(line.what is Did.END and line.at <= trouble.at for line in self.did_of(trouble.key))

    def trainers_that_had_it(self, trouble: Trouble) -> set[int]:
        """Returns the lives of the trainer that had a trouble's key on their device, by their book."""
        had = (Did.TRANSFER, Did.BEGIN)
        return {line.life for line in self.did_of(trouble.key) if line.what in had and line.at <= trouble.at}

    def trainer_that_had_it_ended(self, trouble: Trouble) -> bool:
        """Tells whether the life of the trainer was ended that had a trouble's key.

        One that was ended just then may not have written that; so if none did, it may be any that was ended since
        the key was staged.
        """
        ended = self.faults(TRAINER, KILL, TERM, until=trouble.at)
        had = self.trainers_that_had_it(trouble)
        if had:
            return any(each.life in had for each in ended)
        staged_at = min((line.at for line in self.book_of(trouble)), default=float("inf"))
        return any(each.at >= staged_at for each in ended)
