"""Which errors, refusals and endings may follow which fault, and why. What is not listed here is unexplained.

A fault comes every other second, so "soon after a fault" says nothing. A trouble is explained by what had to be so
for it to happen: an exit by a signal to that very process; an answer by what the key's own book says; a wait that
was in vain by parties that were away for it. Parties are away from a fault on until they are let go on or are at
work anew. In a wait that failed there may be no calm, no time with all the parties there, that is longer than what
was waited for takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from .soak_evidence import POOL, Evidence, Injected, Trouble, wire_of
from .soak_faults import DAEMON, FULL, KILL, ORCHESTRATORS, TERM, TRAINER
from .soak_parties import ATTACH_S, CONNECT_S, SILENCE_S, TIMEOUT_S, WAIT_S
from .soak_staleness import ANSWER_S, was_reset, was_stale
from .soak_words import STALE, Did

_TURN_S: Final = 2.0
"""For a key to be staged and trained, with all there: half need 0.05 s, but a trainer that is new compiles."""
_ATTACHED_S: Final = 3.0
"""For the trainer to attach, or to tell a new daemon what it has: it repeats every 2 s what is not answered."""
_CLOSE_S: Final = 2.0
"""For which a trainer that leaves waits until the daemon has heard all."""
_CLOCK_S: Final = 0.1
"""By which a wait may seem too short to somebody else."""

Check = Callable[[Trouble, Evidence], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """A kind of trouble, and what has to be so for it to be none of Forebay's.

    Attributes:
        who: Which processes may meet it; the beginning of their names.
        kind: Of the trouble.
        name: Of the trouble.
        explains: Tells whether it was so.
        reason: Why that explains it.
    """

    who: str
    kind: str
    name: str
    explains: Check
    reason: str

    def is_about(self, trouble: Trouble) -> bool:
        """Tells whether it speaks of such trouble."""
        return trouble.who.startswith(self.who) and (self.kind, self.name) == (trouble.kind, trouble.name)


def _parties(trouble: Trouble, others: tuple[str, ...]) -> set[str]:
    return {trouble.who, *others} | ({wire_of(trouble.who)} if trouble.who in ORCHESTRATORS else set())


def _waited(seconds: float, calm_s: float, *others: str) -> Check:
    """Whoever met it waited that long, and never were it, its wire and the others there for longer than a calm."""

    def explains(trouble: Trouble, evidence: Evidence) -> bool:
        parties = _parties(trouble, others)
        return evidence.longest_calm_s(parties, trouble.at - seconds, trouble.at) <= calm_s

    return explains


def _fresh(trouble: Trouble, evidence: Evidence, since: float, calm_s: float, *others: str) -> bool:
    """Tells whether since a second it, its wire and the others were never there for longer than a calm."""
    return evidence.longest_calm_s(_parties(trouble, others), since, trouble.at) <= calm_s


def _drained(trouble: Trouble, evidence: Evidence) -> bool:
    ends = (evidence.end_of(DAEMON, each.life) for each in evidence.faults(DAEMON, TERM, until=trouble.at))
    return any(_fresh(trouble, evidence, end, ANSWER_S) for end in ends)


def _was_full(trouble: Trouble, evidence: Evidence) -> bool:
    fulls = evidence.faults(POOL, FULL, until=trouble.at)
    return any(_fresh(trouble, evidence, each.over_at, ANSWER_S, DAEMON) for each in fulls)


def _daemon_is_new_to_it(trouble: Trouble, evidence: Evidence) -> bool:
    """A daemon has begun since the key was acknowledged, and its trainer has not told it all yet."""
    staged_at = evidence.acknowledged_at(trouble)
    return any(
        staged_at <= each.end
        and each.begin <= trouble.at
        and _fresh(trouble, evidence, each.end, _ATTACHED_S, DAEMON, TRAINER)
        for each in evidence.absences
        if each.who == DAEMON and each.kind in (KILL, TERM)
    )


_connecting: Final = _waited(CONNECT_S, _TURN_S, DAEMON)
_silent: Final = _waited(SILENCE_S, ANSWER_S, DAEMON)
_offering: Final = _waited(WAIT_S, _TURN_S, DAEMON, TRAINER)
_calling: Final = _waited(TIMEOUT_S, _TURN_S, DAEMON, TRAINER)
_attaching: Final = _waited(ATTACH_S, _ATTACHED_S, DAEMON)
_closing: Final = _waited(_CLOSE_S, ANSWER_S, DAEMON)


def _found_no_slot(trouble: Trouble, evidence: Evidence) -> bool:
    return evidence.took_s(trouble) >= WAIT_S - _CLOCK_S and _offering(trouble, evidence)


def _fell_silent(trouble: Trouble, evidence: Evidence) -> bool:
    """A call waits until the daemon was silent for long; while it stays so, the next ones wait for one repeat."""
    others = evidence.other_errors(trouble)
    before = (each.at for each in others if each.at < trouble.at)
    told_before = any(_fresh(trouble, evidence, at, ANSWER_S, DAEMON) for at in before)
    # The calls that fail in one turn of its loop are written down in any order.
    of_the_turn = (each for each in others if trouble.at <= each.at < trouble.at + _CLOCK_S)
    took_long = any(evidence.took_s(each) >= SILENCE_S - _CLOCK_S for each in (trouble, *of_the_turn))
    return (took_long or told_before) and _silent(trouble, evidence)


def _timed_out(trouble: Trouble, evidence: Evidence) -> bool:
    if not trouble.key:
        return _connecting(trouble, evidence)
    return evidence.took_s(trouble) >= TIMEOUT_S - _CLOCK_S and _calling(trouble, evidence)


def _could_not_attach(trouble: Trouble, evidence: Evidence) -> bool:
    life = evidence.life(trouble.who, trouble.life)
    return life is not None and not life.at_work_at and _attaching(trouble, evidence)


def _left_unheard(trouble: Trouble, evidence: Evidence) -> bool:
    return _was_hit(TERM)(trouble, evidence) and _closing(trouble, evidence)


def _was_hit(kind: str) -> Check:
    return lambda trouble, evidence: bool(_hits(kind, trouble, evidence))


def _hits(kind: str, trouble: Trouble, evidence: Evidence) -> list[Injected]:
    """Returns the signals of a kind to that very process, which ends once, so each explains one end."""
    return [each for each in evidence.faults(trouble.who, kind, until=trouble.at) if each.life == trouble.life]


def _was_hit_out_of_order(trouble: Trouble, evidence: Evidence) -> bool:
    """Before it could take a signal, or once more while the first one had it end: its loop is gone by then."""
    hits = _hits(TERM, trouble, evidence)
    return len(hits) > 1 or any(not each.was_at_work for each in hits)


def _was_trained_by_a_call_before(trouble: Trouble, evidence: Evidence) -> bool:
    return evidence.was_carried_out_before(trouble) and evidence.was_trained_before(trouble)


def _started_while_full(trouble: Trouble, evidence: Evidence) -> bool:
    life = evidence.life(trouble.who, trouble.life)
    if life is None or life.at_work_at:
        return False
    return any(life.began_at <= each.over_at for each in evidence.faults(POOL, FULL, until=trouble.at))


def _wrote_an_error(trouble: Trouble, evidence: Evidence) -> bool:
    return any(line.what is Did.ERROR and line.life == trouble.life for line in evidence.did)


_ORCHESTRATOR: Final = "orchestrator-"

EXPLANATIONS: Final = (
    Explanation(
        _ORCHESTRATOR,
        "refusal",
        "draining",
        _drained,
        "a daemon that is to stop takes no new offers",
    ),
    Explanation(
        _ORCHESTRATOR,
        "refusal",
        "in_use",
        lambda trouble, evidence: evidence.was_carried_out_before(trouble),
        "a call before was carried out, and its answer never arrived",
    ),
    Explanation(
        _ORCHESTRATOR,
        "refusal",
        "consumed",
        _was_trained_by_a_call_before,
        "a call before was carried out, its answer never arrived, and the key is trained",
    ),
    Explanation(
        _ORCHESTRATOR,
        "refusal",
        "no_slot",
        _found_no_slot,
        "nobody could release a slot for as long as the offer would wait",
    ),
    Explanation(
        _ORCHESTRATOR,
        "refusal",
        "unknown_key",
        _daemon_is_new_to_it,
        "a daemon that was started anew learns from its trainer what is on the device, once that is back",
    ),
    Explanation(
        _ORCHESTRATOR,
        "refusal",
        "shm_full",
        _was_full,
        "the mount had no room for the slot to grow",
    ),
    Explanation(
        _ORCHESTRATOR,
        "error",
        "BrokenError",
        _fell_silent,
        "no word came for as long as a client takes to hold the daemon for gone",
    ),
    Explanation(
        _ORCHESTRATOR,
        "error",
        "WaitTimeoutError",
        _timed_out,
        "what was waited for did not come while somebody was away",
    ),
    Explanation(
        _ORCHESTRATOR,
        "gone",
        "lost",
        lambda trouble, evidence: evidence.trainer_that_had_it_ended(trouble),
        "it was on the device of a trainer that is gone, and the daemon says so by name",
    ),
    Explanation(
        _ORCHESTRATOR,
        "gone",
        "dropped",
        was_reset,
        "the queue was reset while it was there, or on its way",
    ),
    Explanation(
        _ORCHESTRATOR,
        "gone",
        STALE,
        was_stale,
        "its time was over, or its version too far behind one that the queue was told",
    ),
    Explanation(
        TRAINER,
        "error",
        "BrokenError",
        _left_unheard,
        "it left while the daemon was away, and names what that never heard",
    ),
    Explanation(
        TRAINER,
        "error",
        "WaitTimeoutError",
        _could_not_attach,
        "the daemon did not answer for as long as it may take to attach",
    ),
    Explanation(TRAINER, "exit", "1", _wrote_an_error, "it ended by the error that it wrote down"),
    Explanation(
        DAEMON, "exit", "1", _started_while_full, "the mount had no room for the pool of a daemon that starts"
    ),
    Explanation("", "exit", "0", _was_hit(TERM), "it was told to end"),
    Explanation("", "exit", "-9", _was_hit(KILL), "it was killed"),
    Explanation("", "exit", "-15", _was_hit_out_of_order, "SIGTERM met it before, or after, it took it in order"),
)


def explanation_of(trouble: Trouble, evidence: Evidence) -> Explanation | None:
    """Returns what explains a trouble; None if nothing does, and nothing ever does in a run without faults."""
    if not evidence.injected:
        return None
    for explanation in EXPLANATIONS:
        if explanation.is_about(trouble) and explanation.explains(trouble, evidence):
            return explanation
    return None
