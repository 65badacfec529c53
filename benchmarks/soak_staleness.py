"""What a reset drops and what is stale, by the books: what explains such an end, and what was trained anyway.

A word to the daemon counts from its begin on until it can arrive no more: it was answered before it was repeated,
or its key was staged, so that a repeat says nothing new; or it is over, and since then its wire and the daemon
were both there for as long as an answer takes. A queue forgets its policy version at a reset.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from forebay.wire import RefusalCode

from .soak_evidence import Evidence, Trouble, wire_of
from .soak_faults import DAEMON, KILL, MAX_VERSIONS_BEHIND, TERM, TRAINER
from .soak_parties import RETRY_S
from .soak_words import GONE, STALE, Did, OrchestratorLine, Told, TrainerLine

ANSWER_S: Final = 1.0
"""For an answer, with all there: to dial (0.1 s), to say hello and repeat (0.3 s each), and busy processors."""
_WORDS: Final = (Told.ATTEMPT, Told.RESET, Told.ADVANCE)
_NO_ANSWERS: Final = (Told.ERROR, Told.CANCELLED)


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an orchestrator.

    Attributes:
        who: The orchestrator.
        line: That it began.
        answer: What followed it; None if its process was ended before that.
        over_at: Monotonic second of that.
    """

    who: str
    line: OrchestratorLine
    answer: OrchestratorLine | None
    over_at: float

    def was_answered(self, what: Told) -> bool:
        """Tells whether it was answered so."""
        return self.answer is not None and self.answer.what is what

    @property
    def is_said_once(self) -> bool:
        """Whether no repeat of it can come after its answer, or none that says anything new."""
        if self.answer is None or self.answer.what in _NO_ANSWERS:
            return False
        return self.answer.what is Told.STAGED or self.over_at - self.line.at < RETRY_S


class Words:
    """What orchestrators said to the daemon.

    Half an hour has a hundred thousand words and thousands of troubles: what is looked for often has an index.

    Args:
        evidence: Of the run.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        words = (word for who, lines in evidence.told.items() for word in self._of(who, lines))
        self._by_what: dict[Told, list[Word]] = {}
        self._calls: dict[tuple[str, str], list[Word]] = {}
        for word in sorted(words, key=lambda word: word.line.at):
            self._by_what.setdefault(word.line.what, []).append(word)
            if word.line.what is Told.ATTEMPT:
                self._calls.setdefault((word.who, word.line.key), []).append(word)
        told = [*self.all(Told.ADVANCE), *self.all(Told.ATTEMPT)]
        self._by_version = sorted((word for word in told if _version(word) >= 0), key=_version)
        self._advances = sorted((word for word in self.all(Told.ADVANCE) if _version(word) >= 0), key=_version)

    def _of(self, who: str, lines: Sequence[OrchestratorLine]) -> Iterator[Word]:
        later: dict[str, OrchestratorLine] = {}
        for line in reversed(lines):
            answer = later.get(line.key)
            later[line.key] = line
            if line.what in _WORDS:
                answer = answer if answer is not None and answer.life == line.life else None
                over_at = self._evidence.end_of(who, line.life) if answer is None else answer.at
                yield Word(who=who, line=line, answer=answer, over_at=over_at)

    def all(self, what: Told) -> list[Word]:
        """Returns the words of a kind, in order."""
        return self._by_what.get(what, [])

    def too_far_from(self, call: Word, *, advances: bool = False) -> Iterator[Word]:
        """Yields the words that told a version which a call is too many behind, the least version first.

        Args:
            call: The call.
            advances: Whether only those that said nothing else.
        """
        if _version(call) < 0:
            return iter(())
        told = self._advances if advances else self._by_version
        first = bisect.bisect_right(told, _version(call) + MAX_VERSIONS_BEHIND, key=_version)
        return itertools.islice(told, first, None)

    def may_come(self, word: Word, since: float, until: float) -> bool:
        """Tells whether a word, or a copy of it, may have come to the daemon between two seconds."""
        if since <= word.over_at or word.is_said_once:
            return word.line.at <= until and since <= word.over_at
        way = (wire_of(word.who), DAEMON)
        return self._evidence.longest_calm_s(way, word.over_at, since, enough_s=ANSWER_S) <= ANSWER_S

    def of_key(self, trouble: Trouble) -> list[Word]:
        """Returns the calls by which a trouble's key may have come to where the trouble met it.

        The last one; where that was told that the key is there already, those before that were not refused.
        """
        calls = self._calls.get((trouble.who, trouble.key), [])
        found: list[Word] = []
        was_there_already = False
        for word in reversed([word for word in calls if word.line.at <= trouble.at]):
            answer = word.answer
            if answer is not None and answer.what is Told.REFUSED and answer.at < trouble.at:
                was_there_already |= answer.code == RefusalCode.IN_USE
                continue
            found.append(word)
            if not was_there_already:
                break
        return found


def _version(word: Word) -> int:
    return -1 if word.line.policy_version is None else word.line.policy_version


@functools.lru_cache(maxsize=1)
def words_of(evidence: Evidence) -> Words:
    """Returns the words of a run, which every trouble of it is judged by."""
    return Words(evidence)


def was_reset(trouble: Trouble, evidence: Evidence) -> bool:
    """Tells whether a reset came while the daemon had a trouble's key, and no trainer had it on its device."""
    words = words_of(evidence)
    return _may_be_dropped(trouble, evidence) and any(
        words.may_come(reset, call.line.at, trouble.at) and not _was_consumed(trouble.key, reset, evidence)
        for call in words.of_key(trouble)
        for reset in words.all(Told.RESET)
    )


def was_stale(trouble: Trouble, evidence: Evidence) -> bool:
    """Tells whether a trouble's key had expired, or was too far behind a version that the queue had been told."""
    words = words_of(evidence)
    return _may_be_dropped(trouble, evidence) and any(
        _had_expired(call, trouble.at) or _was_behind(call, trouble.at, words) for call in words.of_key(trouble)
    )


def _may_be_dropped(trouble: Trouble, evidence: Evidence) -> bool:
    """What is on a trainer's device comes back only by that trainer's end: nothing drops it before."""
    return not evidence.trainers_that_had_it(trouble) or evidence.trainer_that_had_it_ended(trouble)


def _was_consumed(key: str, reset: Word, evidence: Evidence) -> bool:
    return any(line.what is Did.HEARD and line.at < reset.line.at for line in evidence.did_of(key))


def _had_expired(call: Word, at: float) -> bool:
    expires_s = call.line.expires_s
    return expires_s is not None and call.line.at + expires_s <= at


def _was_behind(call: Word, at: float, words: Words) -> bool:
    return any(word.line.at <= at and not _was_forgotten(word, call, words) for word in words.too_far_from(call))


def _was_forgotten(word: Word, call: Word, words: Words) -> bool:
    """Tells whether a reset came between a word that told a version and a call, after one and before the other."""
    return any(
        reset.was_answered(Told.WAS_RESET)
        and reset.over_at < call.line.at
        and word.line.at < reset.line.at
        and not words.may_come(word, reset.line.at, call.line.at)
        for reset in words.all(Told.RESET)
    )


# What was trained anyway.


def trained_anyway(evidence: Evidence) -> list[Trouble]:
    """Returns what a trainer brought to its device though it was told gone, had expired, or was too far behind."""
    words = words_of(evidence)
    calls: dict[str, list[Word]] = {}
    for word in words.all(Told.ATTEMPT):
        calls.setdefault(word.line.key, []).append(word)
    gone = {line.key: line for lines in evidence.told.values() for line in lines if line.what in GONE}
    transfers = [line for line in evidence.did if line.what is Did.TRANSFER]
    return [
        Trouble(at=line.at, who=TRAINER, kind="trained", name=name, words=line.key, life=line.life, key=line.key)
        for line in transfers
        for name in _wrongs(line, calls, gone, words, evidence)
    ]


def _wrongs(
    transfer: TrainerLine,
    calls: Mapping[str, Sequence[Word]],
    gone: Mapping[str, OrchestratorLine],
    words: Words,
    evidence: Evidence,
) -> Iterator[str]:
    told = gone.get(transfer.key)
    if told is not None and told.at < transfer.at and not _replaced_nothing(told, calls.get(transfer.key, ())):
        yield f"after it was told {told.what}"
    before = [word for word in calls.get(transfer.key, ()) if word.line.at <= transfer.at]
    if before and _expired_before(transfer, before[-1], evidence):
        yield "after it had expired"
    if before and _was_behind_before(transfer, before[-1], words, evidence):
        yield "though it was behind"


def _replaced_nothing(told: OrchestratorLine, calls: Sequence[Word]) -> bool:
    """Tells whether a call was refused as stale, and one before it may have staged its key, which then stays."""
    before = [call for call in calls if call.line.at <= told.at]
    if told.code != STALE or not before or before[-1].answer is not told:
        return False
    return any(call.answer is None or call.answer.what is not Told.REFUSED for call in before[:-1])


def _expired_before(transfer: TrainerLine, call: Word, evidence: Evidence) -> bool:
    """Tells whether a transfer began later than the time that was left, and later than that was heard of."""
    if call.line.expires_s is None:
        return False
    parties = (call.who, wire_of(call.who), DAEMON, TRAINER)
    late_s = transfer.at - (call.line.at + call.line.expires_s)
    return late_s > ANSWER_S + evidence.away_s(parties, call.line.at, transfer.at)


def _was_behind_before(transfer: TrainerLine, call: Word, words: Words, evidence: Evidence) -> bool:
    """Tells whether the daemon had confirmed a version that a transfer was too far behind, and could say so.

    It must have known it still: no reset, and no other daemon, which may have nothing to know it by.
    """
    return any(
        word.was_answered(Told.ADVANCED)
        and word.line.at <= transfer.at
        and not _is_another_daemon(evidence, word.line.at, transfer.at)
        and _could_be_heard_of(word, transfer, call, evidence)
        and not any(words.may_come(reset, word.line.at, transfer.at) for reset in words.all(Told.RESET))
        for word in words.too_far_from(call, advances=True)
    )


def _could_be_heard_of(word: Word, transfer: TrainerLine, call: Word, evidence: Evidence) -> bool:
    if word.over_at <= call.line.at and call.was_answered(Told.STAGED):
        return True  # that offer was to be refused
    if transfer.at - word.over_at <= ANSWER_S:
        return False
    heard_s = ANSWER_S + evidence.away_s((DAEMON, TRAINER), word.over_at, transfer.at)
    return transfer.at - word.over_at > heard_s


def _is_another_daemon(evidence: Evidence, since: float, until: float) -> bool:
    ends = (each for each in evidence.absences if each.who == DAEMON and each.kind in (KILL, TERM))
    return any(each.begin <= until and each.end >= since for each in ends)
