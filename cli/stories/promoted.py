"""What can be said of a micro-batch that has left its slot: for the device, or for good."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from forebay.wire import Event, Moment, Peeked, RefusalCode

from ..words import age, named
from .seen import Case, Judgement, Seen, not_back
from .unknown import REFUSAL_REMEDIES

_STALE = "stale: "


def on_device(seen: Seen, peeked: Peeked) -> Judgement:
    """Judges one that is on the device."""
    words = f"it has been on the device of {named(peeked.holder, 'its trainer')} for {age(peeked.age_s)}"
    if not seen.holder_is_back:
        return not_back(words)
    return Judgement(Case.ON_DEVICE, words, "wait for its step; if that takes long, look at the trainer")


def consumed(seen: Seen, peeked: Peeked) -> Judgement:
    """Judges one that was trained."""
    words = f"it was trained {age(peeked.age_s)} ago"
    if took := phases(seen.own):
        words += ": " + ", ".join(f"{name} {age(seconds)}" for name, seconds in took.items())
    return Judgement(Case.CONSUMED, words, "nothing is to be done: the key is never trained again")


_PHASES: dict[str, str] = {
    Event.OFFERED: "waiting for a slot",
    Event.FILLING: "filling",
    Event.READY: "READY",
    Event.LENT: "lent",
    Event.ON_DEVICE: "on the device",
}


def phases(moments: Sequence[Moment]) -> dict[str, float]:
    """Returns the seconds of each phase of the last attempt of a key, in order."""
    begins = [index for index, moment in enumerate(moments) if moment.event == Event.OFFERED]
    steps = [m for m in moments[begins[-1] if begins else 0 :] if m.event in _PHASES or m.event == Event.CONSUMED]
    took: dict[str, float] = {}
    for one, after in itertools.pairwise(steps):
        if one.event in _PHASES:
            took[_PHASES[one.event]] = took.get(_PHASES[one.event], 0.0) + after.at_s - one.at_s
    return took


def dropped(seen: Seen, peeked: Peeked) -> Judgement:
    """Judges one that ended without having been trained."""
    words = f"it was dropped {age(peeked.age_s)} ago: {peeked.reason or 'nobody said why'}"
    if peeked.reason.startswith(_STALE):
        return Judgement(Case.STALE, words, REFUSAL_REMEDIES[RefusalCode.STALE])
    if peeked.reason == "replaced":
        return Judgement(Case.REPLACED, words, "its newer attempt was refused: the sender has to stage it again")
    if peeked.reason in _BY_SENDER and (sender := _last_sender(seen)):
        words += f"; that was {sender}"
    return Judgement(Case.DROPPED, words, _DROPS.get(peeked.reason, "stage it again if it is still to be trained"))


def _last_sender(seen: Seen) -> str:
    """Returns who offered it last, as far as that is remembered: the status forgets whoever is silent."""
    return next((moment.who for moment in reversed(seen.own) if moment.event == Event.OFFERED), "")


_SILENT = "the sender fell silent while filling"
_ABANDONED = "abandoned by its sender"
_BY_SENDER = (_SILENT, _ABANDONED)
_DROPS = {
    "the queue was reset": "see who reset it (forebay events); stage it again if it is still to be trained",
    _SILENT: "look at the sender and the network: once back, it goes on by itself",
    _ABANDONED: "its sender gave it up: a deadline of its own, or it ended; stage it again",
}


def lost(_: Seen, peeked: Peeked) -> Judgement:
    """Judges one that was on the device when its trainer ended."""
    words = f"it was lost {age(peeked.age_s)} ago: {peeked.reason}"
    return Judgement(Case.LOST, words, "see why the trainer ended; the sender can stage the same key again")
