"""The soak: real processes, faults at random moments, and books that have to balance at the end.

A daemon, two orchestrators and a trainer run as processes of their own. For as long as it was asked to, the soak
kills, ends, stops and cuts them by a plan that follows from its seed; what dies is started again at once. Then it
lets all keys come to their outcomes, ends everything in order, and balances the books: see `soak_accounts`.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Final

from .soak_accounts import account, history, recoveries, troubles_of
from .soak_evidence import Evidence, Trouble
from .soak_explained import explanation_of
from .soak_faults import CUT, FULL, KILL, STOP, STRANGER, TERM, TRAINER, Fault, chosen, plan
from .soak_place import Place
from .soak_result import SoakResult, SoakSettings
from .soak_run import Run, RunResult
from .soak_staleness import trained_anyway
from .soak_words import STALE, Told

_SHOWN: Final = 50
_STAND_INS: Final = (
    "a proxy on this host stands for the network between orchestrators and daemon",
    "jax on the CPU stands for the device, a small linear model for the training",
)


def run(settings: SoakSettings) -> SoakResult:
    """Runs the whole soak; nothing of it is left when this returns or raises, except what is to be kept.

    Raises:
        HostError: A folder or port cannot be had.
    """
    kinds = chosen(settings.faults)
    left_out = []
    with Place(Path(settings.shm), settings.keep, settings.slots, has_keys=settings.keys) as place:
        if FULL in kinds and not place.is_private_mount:
            left_out.append(f"{FULL}: {settings.shm} is no empty mount of the soak's own, and others would suffer")
            kinds = tuple(kind for kind in kinds if kind != FULL)
        if STRANGER in kinds and place.keys is None:
            left_out.append(f"{STRANGER}: without keys everybody may enter")
            kinds = tuple(kind for kind in kinds if kind != STRANGER)
        faults = plan(settings.seed, 60 * settings.minutes, kinds)
        found = Run(settings, place, faults).run()
    return _result(settings, found, left_out, list(kinds), faults)


def _result(
    settings: SoakSettings, found: RunResult, left_out: list[str], kinds: list[str], faults: list[Fault]
) -> SoakResult:
    everything = sorted((line for lines in found.told.values() for line in lines), key=lambda line: line.at)
    accounts = account(everything, found.did)
    evidence = Evidence(found.injected, found.lives, found.told, found.did)
    explained: collections.Counter[str] = collections.Counter()
    unexplained: list[Trouble] = []
    troubles = (*found.troubles, *troubles_of(found.told, TRAINER, found.did), *trained_anyway(evidence))
    for trouble in sorted(troubles, key=lambda trouble: trouble.at):
        explanation = explanation_of(trouble, evidence)
        if explanation is None:
            unexplained.append(trouble)
        else:
            explained[f"{trouble.kind} {trouble.name}: {explanation.reason}"] += 1
    injected = collections.Counter(each.fault.name for each in found.injected)
    by_kind = collections.Counter(each.fault.kind for each in found.injected)
    suspects = {"lost": accounts.lost, "duplicated": accounts.duplicated, "wrong_bytes": accounts.wrong_bytes}
    return SoakResult(
        micro_batches=accounts.micro_batches,
        kills=by_kind[KILL],
        terms=by_kind[TERM],
        stalls=by_kind[STOP],
        cuts=by_kind[CUT],
        resets=sum(line.what is Told.WAS_RESET for line in everything),
        stale=sum(line.what is Told.DROPPED and line.code == STALE for line in everything),
        strangers=by_kind[STRANGER],
        lost=len(accounts.lost),
        duplicated=len(accounts.duplicated),
        wrong_bytes=len(accounts.wrong_bytes),
        stuck_slots=len(found.stuck),
        leaked_bytes=sum(found.left_behind.values()) + found.beyond_limit_bytes,
        unexplained_errors=len(unexplained),
        retrained_after_death=len(accounts.retrained_after_death),
        reported_lost=len(accounts.reported_lost),
        recovery_s=recoveries(found.injected, found.did),
        seed=settings.seed,
        faults=kinds,
        plan=faults,
        injected=dict(sorted(injected.items())),
        told=dict(sorted(collections.Counter(f"{line.what} {line.code}".strip() for line in everything).items())),
        explained=dict(sorted(explained.items())),
        unexplained=[_words(trouble, found.began_at) for trouble in unexplained[:_SHOWN]],
        suspects={
            name: [history(key, everything, found.did, found.began_at) for key in keys[:_SHOWN]]
            for name, keys in suspects.items()
            if keys
        },
        daemon_starts_at_s=found.daemon_starts_at_s,
        left_behind=[f"{path}: {count} bytes" for path, count in found.left_behind.items()] + found.stuck,
        left_out=left_out,
        stand_ins=list(_STAND_INS),
        settings=settings,
    )


def _words(trouble: Trouble, began_at: float) -> str:
    return f"{trouble.at - began_at:.1f} s {trouble.who} {trouble.kind} {trouble.name}: {trouble.words}"
