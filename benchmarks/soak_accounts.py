"""The soak's accounts: what its processes wrote down, and what that comes to.

An orchestrator writes a line for each attempt, acknowledgement, refusal, error and final outcome of a key; a key
is staged until a final outcome was told: consumed, lost or dropped. The trainer writes a line before it trains a
micro-batch and one after, each with a digest of what is on the device then, and one when the daemon has confirmed
that it knows the key to be consumed. The rules:

- `wrong_bytes`: a digest that the trainer wrote differs from that of the micro-batch which was staged under its
  key, or nobody ever staged such a key.
- `duplicated`: a key was trained twice in one life of the trainer; or trained again after any party had been told
  that it is consumed; or by another life although the one before had ended in order without naming the key as one
  of which the daemon never heard.
- `retrained_after_death`: a key that a trainer had in hand when it was killed, or that it named at its end as one
  of which the daemon never heard, and that the next one trained. Nobody had been told that it is consumed, and
  what the first one had accumulated died with it: so this is right, and counted apart.
- `lost`: a key that was never trained to its end, although its staging was acknowledged or it was told consumed,
  and that was never reported lost or dropped by name.
- `reported_lost`: a key that was told lost or dropped, by name and with a reason.
- `stuck_slots`: slots that are not FREE after all keys have their outcomes and the trainer had time to take what
  is left.
- `leaked_bytes`: what is left in the soak's folders in shared memory, for sockets and for temporary files after
  the orderly end, a name without bytes counting as one; and what the pool grew beyond its limit.
- `unexplained_errors`: errors, refusals, keys told gone, exit codes and log lines of level ERROR which no injected
  fault explains, see `soak_explained`; keys that had no outcome in the end; what was trained though it must not
  be, see `soak_staleness`; and what strangers got, see `soak_strangers`.
"""

from __future__ import annotations

import collections
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .soak_evidence import Injected, Trouble
from .soak_words import FINAL, GONE, Did, OrchestratorLine, Told, TrainerLine


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took until the next micro-batch was trained, after faults of one kind.

    Attributes:
        faults: How many.
        p50_s: Median seconds from the injection.
        max_s: The longest.
    """

    faults: int
    p50_s: float
    max_s: float


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the books come to; see the module for the rules.

    Attributes:
        micro_batches: Keys that were trained to their end.
        lost: Keys.
        duplicated: Keys.
        wrong_bytes: Lines of the trainer.
        retrained_after_death: Keys.
        reported_lost: Keys.
    """

    micro_batches: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    wrong_bytes: tuple[str, ...]
    retrained_after_death: tuple[str, ...]
    reported_lost: tuple[str, ...]


def account(told: Sequence[OrchestratorLine], did: Sequence[TrainerLine]) -> Accounts:
    """Balances the books of the orchestrators and of the trainer."""
    staged = {line.key: line.digest for line in told if line.what is Told.ATTEMPT}
    ended = {line.key for line in did if line.what is Did.END}
    reported = {line.key for line in told if line.what in GONE}
    promised = {line.key for line in told if line.what in (Told.STAGED, Told.CONSUMED)}
    duplicated, retrained = _trained_again(told, did)
    digests = [line for line in did if line.what in (Did.BEGIN, Did.END)]
    return Accounts(
        micro_batches=len(ended),
        lost=tuple(sorted(promised - ended - reported)),
        duplicated=duplicated,
        wrong_bytes=tuple(line.key for line in digests if staged.get(line.key) != line.digest),
        retrained_after_death=retrained,
        reported_lost=tuple(sorted(reported)),
    )


def _trained_again(
    told: Sequence[OrchestratorLine], did: Sequence[TrainerLine]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the keys that were trained twice, and those that were rightly trained anew."""
    known_at = _known_consumed_at(told, did)
    left = {line.life for line in did if line.what is Did.LEFT}
    unheard = {(line.life, line.key) for line in did if line.what is Did.UNHEARD}
    begins: dict[str, list[TrainerLine]] = collections.defaultdict(list)
    for line in did:
        if line.what is Did.BEGIN:
            begins[line.key].append(line)
    duplicated: set[str] = set()
    retrained: set[str] = set()
    for key, lines in begins.items():
        for before, again in itertools.pairwise(lines):
            died = before.life not in left or (before.life, key) in unheard
            was_known = known_at.get(key, again.at) < again.at
            is_right = before.life < again.life and died and not was_known
            (retrained if is_right else duplicated).add(key)
    return tuple(sorted(duplicated)), tuple(sorted(retrained - duplicated))


def _known_consumed_at(told: Iterable[OrchestratorLine], did: Iterable[TrainerLine]) -> dict[str, float]:
    """Returns when each key was first known to be consumed: by its orchestrator, or by the daemon."""
    known = [(line.key, line.at) for line in told if line.what is Told.CONSUMED]
    known += [(line.key, line.at) for line in did if line.what is Did.HEARD]
    first: dict[str, float] = {}
    for key, at in known:
        first[key] = min(at, first.get(key, at))
    return first


def troubles_of(
    told: Mapping[str, Sequence[OrchestratorLine]], trainer: str, did: Sequence[TrainerLine]
) -> list[Trouble]:
    """Returns what the books tell of errors, refusals, keys that are gone and keys that have no outcome.

    Args:
        told: By orchestrator.
        trainer: The trainer's name.
        did: Its lines.
    """
    kinds = {Told.REFUSED: "refusal", Told.ERROR: "error", Told.LOST: "gone", Told.DROPPED: "gone"}
    troubles = [
        Trouble(
            at=line.at,
            who=name,
            kind=kinds[line.what],
            name=line.code or line.what.value,
            words=f"{line.key}: {line.words}",
            life=line.life,
            key=line.key,
        )
        for name, lines in told.items()
        for line in lines
        if line.what in kinds
    ]
    troubles += [
        Trouble(at=last.at, who=name, kind="key", name="open", words=f"{last.key}: no outcome was ever told")
        for name, lines in told.items()
        for last in {line.key: line for line in lines if line.key}.values()
        if last.what not in FINAL
    ]
    troubles += [
        Trouble(at=line.at, who=trainer, kind="error", name=line.code, words=line.words, life=line.life)
        for line in did
        if line.what is Did.ERROR
    ]
    return troubles


def history(key: str, told: Sequence[OrchestratorLine], did: Sequence[TrainerLine], began_at: float) -> str:
    """Returns all that the books say about a key, in order, seconds since `began_at`."""
    lines = [
        (line.at, f"orchestrator life {line.life} {line.what} {line.code}") for line in told if line.key == key
    ]
    lines += [(line.at, f"trainer life {line.life} {line.what} {line.code}") for line in did if line.key == key]
    return f"{key}: " + ", ".join(f"{at - began_at:.2f} {words.strip()}" for at, words in sorted(lines))


def recoveries(injected: Sequence[Injected], did: Sequence[TrainerLine]) -> dict[str, Recovery]:
    """Returns by fault how long it took until the next micro-batch was trained, if one ever was."""
    ends = sorted(line.at for line in did if line.what is Did.END)
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    for each in injected:
        following = next((at for at in ends if at > each.at), None)
        if following is not None:
            seconds[each.fault.name].append(following - each.at)
    return {
        name: Recovery(faults=len(some), p50_s=statistics.median(some), max_s=max(some))
        for name, some in sorted(seconds.items())
    }
