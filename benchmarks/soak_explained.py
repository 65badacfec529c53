"""Which errors, refusals and endings may follow which fault, and why. What is not listed here is unexplained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import msgspec

from .soak_faults import CANCEL, CUT, DAEMON, FULL, KILL, ORCHESTRATORS, STOP, TERM, TRAINER, Fault


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that does not happen while nothing is wrong.

    Attributes:
        at: Monotonic second.
        who: The process that met it.
        kind: `refusal`, `error`, `gone`, `key`, `exit` or `log`.
        name: Code of a refusal, class of an error, state of what is gone, exit code.
        words: What was said.
    """

    at: float
    who: str
    kind: str
    name: str
    words: str = ""


class Injected(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was injected.

    Attributes:
        at: Monotonic second.
        fault: What it was.
    """

    at: float
    fault: Fault


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """A kind of trouble, and the faults that it may follow.

    Attributes:
        kind: Of the trouble.
        name: Of the trouble.
        faults: What may have caused it: fault kind and victim; the empty victim stands for any.
        within_s: Seconds after the fault's end for which it explains the trouble.
        reason: Why it does.
        who: Which process may meet it; empty for any.
    """

    kind: str
    name: str
    faults: tuple[tuple[str, str], ...]
    within_s: float
    reason: str
    who: str = ""

    def explains(self, trouble: Trouble, injected: Injected) -> bool:
        """Tells whether a fault explains a trouble by this."""
        fault = injected.fault
        lasts = injected.at <= trouble.at <= injected.at + fault.lasts_s + self.within_s
        return lasts and any(fault.kind == kind and victim in ("", fault.victim) for kind, victim in self.faults)

    def is_about(self, trouble: Trouble) -> bool:
        """Tells whether it speaks of such trouble."""
        is_there = not self.who or trouble.who.startswith(self.who)
        return is_there and (self.kind, self.name) == (trouble.kind, trouble.name)


_DAEMON_AWAY: Final = ((KILL, DAEMON), (TERM, DAEMON), (STOP, DAEMON))
_TRAINER_AWAY: Final = ((KILL, TRAINER), (TERM, TRAINER), (STOP, TRAINER))
_ORCHESTRATOR_AWAY: Final = tuple((kind, who) for kind in (KILL, TERM, STOP) for who in ORCHESTRATORS)
_CALL_CUT_OFF: Final = (*_DAEMON_AWAY, *_ORCHESTRATOR_AWAY, (CUT, ""), (CANCEL, ""))
_RESTART_S: Final = 20.0
"""What a process may take to start on a busy machine, and to be back at work."""

EXPLANATIONS: Final = (
    Explanation("refusal", "draining", ((TERM, DAEMON),), 10, "a daemon that is to stop takes no new offers"),
    Explanation(
        "refusal", "in_use", _CALL_CUT_OFF, 40, "the call before was carried out, and its answer never arrived"
    ),
    Explanation(
        "refusal", "consumed", _CALL_CUT_OFF, 40, "the call before was carried out, and its answer never arrived"
    ),
    Explanation(
        "refusal",
        "no_slot",
        (*_TRAINER_AWAY, *_DAEMON_AWAY),
        _RESTART_S,
        "nobody released a slot for as long as the offer would wait",
    ),
    Explanation(
        "refusal",
        "unknown_key",
        ((KILL, DAEMON), (TERM, DAEMON)),
        _RESTART_S,
        "a daemon that was started anew learns from its trainer what is on the device, once that is back",
    ),
    Explanation("refusal", "shm_full", ((FULL, ""),), 5, "the mount had no room for the slot to grow"),
    Explanation(
        "error",
        "BrokenError",
        (*_DAEMON_AWAY, (CUT, "")),
        _RESTART_S,
        "no word came for as long as a client waits",
    ),
    Explanation(
        "error",
        "WaitTimeoutError",
        (*_DAEMON_AWAY, *_TRAINER_AWAY, *_ORCHESTRATOR_AWAY, (CUT, "")),
        40,
        "what was waited for did not come while somebody was away",
    ),
    Explanation(
        "gone",
        "lost",
        (*_TRAINER_AWAY, *_DAEMON_AWAY),
        40,
        "it was on the device of a trainer that is gone, and the daemon says so by name",
    ),
    Explanation("exit", "-9", ((KILL, ""),), _RESTART_S, "it was killed"),
    Explanation("exit", "-15", ((TERM, ""),), _RESTART_S, "SIGTERM met it before it could take that in order"),
    Explanation("exit", "1", ((FULL, ""),), _RESTART_S, "the mount had no room for the daemon's pool", who=DAEMON),
    Explanation(
        "exit",
        "1",
        _DAEMON_AWAY,
        40,
        "the daemon did not answer for as long as it may take to attach",
        who=TRAINER,
    ),
)


def explanation_of(trouble: Trouble, injected: Sequence[Injected]) -> Explanation | None:
    """Returns what explains a trouble; None if no fault does."""
    for explanation in EXPLANATIONS:
        if explanation.is_about(trouble) and any(explanation.explains(trouble, each) for each in injected):
            return explanation
    return None
