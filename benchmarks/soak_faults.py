"""What the soak does to its processes, and when: a plan that follows from its seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import msgspec

from forebay.wire import SettingError

KILL: Final = "kill"
TERM: Final = "term"
STOP: Final = "stop"
CUT: Final = "cut"
GARBAGE: Final = "garbage"
CANCEL: Final = "cancel"
FULL: Final = "full"
RESET: Final = "reset"
ADVANCE: Final = "advance"
STRANGER: Final = "stranger"

FAULTS: Final = {
    KILL: "SIGKILL; the process is started again at once",
    TERM: "SIGTERM; the process is started again at once",
    STOP: "SIGSTOP for longer than the lease of a filling slot, then SIGCONT",
    CUT: "the connections between orchestrators and daemon are dropped, swallowed or stalled",
    GARBAGE: "a hostile peer sends garbage to every port",
    CANCEL: "a stage call under way is cancelled",
    FULL: "a filler takes what is left of the pool's mount, for a while; only on a mount of the soak's own",
    RESET: "an orchestrator resets the queue, and all go back to an older policy version",
    ADVANCE: "the queue is told the next policy version; some micro-batches are behind it, or expire",
    STRANGER: "somebody without the right keys or rights asks for everything; only where there are keys",
}
"""Every kind of fault, and what it is."""

DAEMON: Final = "daemon"
TRAINER: Final = "trainer"
ORCHESTRATORS: Final = ("orchestrator-0", "orchestrator-1")
ROLES: Final = (DAEMON, TRAINER, *ORCHESTRATORS)
_EVERY_PORT: Final = "every port"
_EVERY_ORCHESTRATOR: Final = "every orchestrator"

DROP: Final = "drop"
SWALLOW: Final = "swallow"
STALL: Final = "stall"
_BOTH_WAYS: Final = "both ways"
TO_DAEMON: Final = "to the daemon"
TO_ORCHESTRATOR: Final = "to the orchestrator"

_WEIGHTS: Final = {KILL: 0.34, TERM: 0.10, STOP: 0.16, CUT: 0.24, GARBAGE: 0.07, CANCEL: 0.07, FULL: 0.05}
_GAP_S: Final = (0.3, 3.1)
"""Seconds from one fault to the next; 1.7 on the average, of which three in four are kills, stalls and cuts."""
LEASE_S: Final = 0.8
"""The lease of a filling slot, short enough that a stopped process outlasts it."""
_STOP_S: Final = (1.5 * LEASE_S, 4.0)
_CUT_S: Final = (0.3, 4.0)
_EARLY: Final = 0.15
_FULL_S: Final = (0.5, 3.0)
_PACES: Final = {RESET: (5.0, 15.0), ADVANCE: (1.5, 5.0), STRANGER: (4.0, 12.0)}
"""Seconds from one to the next of what is no violence: it comes at its own pace, beside the others."""
_BACK: Final = 3
"""Policy versions that a reset goes back."""
MAX_VERSIONS_BEHIND: Final = 2
"""The daemon's setting: fewer than a reset goes back, so that what comes next counts only if it forgot."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a plan.

    Attributes:
        at_s: Seconds from the plan's begin.
        kind: Which of `FAULTS`.
        victim: The process, or the orchestrator whose connections are cut, or the port that is sent garbage.
        how: Of a cut: dropped, swallowed or stalled.
        way: Of a cut: which of the two ways.
        lasts_s: Seconds until it is over; 0 for what has no duration.
        early: Whether a process is hit even while it starts; otherwise the fault waits until it is at work.
        seed: Of what is random within it.
        version: Of an advance or a reset: the policy version from then on.
    """

    at_s: float
    kind: str
    victim: str
    how: str = ""
    way: str = ""
    lasts_s: float = 0.0
    early: bool = False
    seed: int = 0
    version: int = 0

    @property
    def name(self) -> str:
        """The kind and what was hit, to group by."""
        victim = "orchestrator" if self.victim in ORCHESTRATORS else self.victim
        return " ".join(word for word in (self.kind, self.how, victim) if word)


def chosen(words: str) -> tuple[str, ...]:
    """Reads what `--faults` says: `all`, `none`, or names with commas between them.

    Raises:
        SettingError: One is no kind of fault.
    """
    if words == "all":
        return tuple(FAULTS)
    if words == "none":
        return ()
    names = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        raise SettingError("setting faults", got=words, limit=f"all, none, or some of {', '.join(FAULTS)}")
    return names


def plan(seed: int, seconds: float, kinds: tuple[str, ...]) -> list[Fault]:
    """Makes the plan of a seed; the same for the same arguments.

    Args:
        seed: Of `random.Random`.
        seconds: For which faults are injected.
        kinds: Which kinds may be among them.
    """
    violence = [kind for kind in kinds if kind in _WEIGHTS]
    faults = list(_drawn(random.Random(seed), seconds, violence)) if violence else []
    for kind, pace_s in _PACES.items():
        if kind in kinds:
            faults += _paced(random.Random(f"{seed}/{kind}"), seconds, kind, pace_s)
    return _with_versions(sorted(faults, key=lambda fault: fault.at_s))


def _drawn(chance: random.Random, seconds: float, kinds: list[str]) -> Iterator[Fault]:
    weights = [_WEIGHTS[kind] for kind in kinds]
    at_s = 1.0
    while at_s < seconds:
        (kind,) = chance.choices(kinds, weights)
        yield _fault(chance, at_s, kind)
        at_s += chance.uniform(*_GAP_S)


def _paced(chance: random.Random, seconds: float, kind: str, pace_s: tuple[float, float]) -> Iterator[Fault]:
    victims = {RESET: ORCHESTRATORS, ADVANCE: (_EVERY_ORCHESTRATOR,), STRANGER: (_EVERY_PORT,)}[kind]
    at_s = chance.uniform(*pace_s)
    while at_s < seconds:
        seed = chance.getrandbits(32)
        yield Fault(at_s=round(at_s, 3), kind=kind, victim=chance.choice(victims), seed=seed)
        at_s += chance.uniform(*pace_s)


def _with_versions(faults: list[Fault]) -> list[Fault]:
    """Gives each advance and each reset the policy version that holds from then on."""
    version = 0
    found = []
    for fault in faults:
        if fault.kind == ADVANCE:
            version += 1
        elif fault.kind == RESET:
            version = max(0, version - _BACK)
        is_about_it = fault.kind in (ADVANCE, RESET)
        found.append(msgspec.structs.replace(fault, version=version) if is_about_it else fault)
    return found


def _fault(chance: random.Random, at_s: float, kind: str) -> Fault:
    at_s = round(at_s, 3)
    if kind == CUT:
        how = chance.choice((DROP, SWALLOW, STALL))
        return Fault(
            at_s=at_s,
            kind=kind,
            victim=chance.choice(ORCHESTRATORS),
            how=how,
            way=chance.choice((_BOTH_WAYS, TO_DAEMON, TO_ORCHESTRATOR)),
            lasts_s=0.0 if how == DROP else round(chance.uniform(*_CUT_S), 3),
        )
    if kind == GARBAGE:
        return Fault(at_s=at_s, kind=kind, victim=_EVERY_PORT, seed=chance.getrandbits(32))
    if kind == CANCEL:
        return Fault(at_s=at_s, kind=kind, victim=chance.choice(ORCHESTRATORS), seed=chance.getrandbits(32))
    if kind == FULL:
        return Fault(at_s=at_s, kind=kind, victim="pool", lasts_s=round(chance.uniform(*_FULL_S), 3))
    victim = chance.choice((DAEMON, DAEMON, TRAINER, *ORCHESTRATORS))
    return Fault(
        at_s=at_s,
        kind=kind,
        victim=victim,
        lasts_s=round(chance.uniform(*_STOP_S), 3) * (kind == STOP),
        early=chance.random() < _EARLY,
    )
