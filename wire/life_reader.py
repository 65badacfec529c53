"""Puts micro-batches' lives together from the moments that a daemon tells of, one after another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from .events import Event
from .lives import End, Life, Past, Phase, Span
from .moments import Moment


def past_of(moments: Sequence[Moment], now_s: float) -> Past:
    """Puts lives together.

    Args:
        moments: All of one run of a daemon, in order and without a gap; those before the first may be forgotten.
        now_s: Monotonic second up to which they are all.
    """
    reader = _Reader(moments[0].at_s if moments else now_s)
    for moment in moments:
        reader.read(moment)
    return reader.past(now_s)


_STEPS: Final[dict[str, Phase | None]] = {
    Event.FILLING: Phase.FILLING,
    Event.READY: Phase.READY,
    Event.LENT: Phase.LENT,
    Event.RELEASED: None,
    Event.QUARANTINED: Phase.QUARANTINED,
    Event.RETURNED: Phase.READY,
    Event.ON_DEVICE: Phase.ON_DEVICE,
}
"""What begins with a step of a life."""

_BEFORE: Final[dict[str, tuple[Phase | None, ...]]] = {
    Event.FILLING: (Phase.WAITING,),
    Event.READY: (Phase.FILLING,),
    Event.LENT: (Phase.READY,),
    Event.RELEASED: (Phase.LENT, Phase.QUARANTINED),
    Event.QUARANTINED: (Phase.LENT,),
    Event.RETURNED: (Phase.QUARANTINED,),
    Event.ON_DEVICE: (None, Phase.READY),
    Event.CONSUMED: (Phase.ON_DEVICE,),
    Event.LOST: (Phase.ON_DEVICE,),
}
"""What may be so until then; the first of them was, where no more is known."""

_ENDS: Final = frozenset({Event.CONSUMED, Event.DROPPED, Event.LOST, Event.ALREADY_ON_DEVICE})
_NO_INCIDENTS: Final = frozenset({*_STEPS, Event.OFFERED, Event.CONSUMED}) - {Event.QUARANTINED, Event.RETURNED}
_OF_WAITING: Final = frozenset({Event.FILLING, Event.DROPPED, Event.ALREADY_ON_DEVICE})
"""What can come next for whoever waits for a slot."""
_REPLACED: Final = "replaced"
"""Why an attempt ends whose key a newer one takes over; that one's offer is told first."""
_IN_A_SLOT: Final = frozenset({Phase.FILLING, Phase.READY, Phase.LENT, Phase.QUARANTINED})
_WITH_TRAINER: Final = frozenset({Phase.LENT, Phase.QUARANTINED, Phase.ON_DEVICE})

_Name = tuple[str, str]


class _Growing:
    """A life while it is read."""

    def __init__(self, moment: Moment) -> None:
        self.queue, self.key, self.number = moment.queue, moment.key, moment.number
        self.slot, self.generation = moment.slot, moment.generation
        self.phase: Phase | None = None
        self.began_at = self.seen_at = moment.at_s
        self.is_begin_known = True
        self.spans: list[Span] = []
        self.outcome = self.reason = self.sender = self.trainer = ""
        self.payload_bytes: int | None = None
        self.policy_version: int | None = None

    def begin(self, phase: Phase | None, at_s: float, *, is_known: bool = True) -> None:
        self.phase, self.began_at, self.seen_at, self.is_begin_known = phase, at_s, at_s, is_known

    def close(self, at_s: float, end: End) -> None:
        """Ends the phase that it is at."""
        if self.phase is None:
            return
        slot = self.slot if self.phase in _IN_A_SLOT else -1
        generation = self.generation if slot >= 0 else 0
        trainer = self.trainer if self.phase in _WITH_TRAINER else ""
        span = Span(self.phase, self.began_at, at_s, slot, generation, trainer, self.is_begin_known, end)
        self.spans.append(span)
        self.phase = None

    def told(self) -> Life:
        return Life(
            queue=self.queue,
            key=self.key,
            number=self.number,
            spans=tuple(self.spans),
            outcome=self.outcome,
            reason=self.reason,
            ended_at=self.seen_at if self.outcome else None,
            sender=self.sender,
            payload_bytes=self.payload_bytes,
            policy_version=self.policy_version,
        )


class _Reader:
    """Reads moments one after another.

    Args:
        began_at: Monotonic second of the first; what came before is not known.
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._lives: list[_Growing] = []
        self._incidents: list[Moment] = []
        self._alive: dict[_Name, _Growing] = {}
        self._replaced: dict[_Name, _Growing] = {}
        self._in_slot: dict[int, _Growing] = {}

    def read(self, moment: Moment) -> None:
        """Reads the next one."""
        if moment.event not in _NO_INCIDENTS:
            self._incidents.append(moment)
        if moment.event == Event.OFFERED:
            self._offered(moment)
        elif moment.event == Event.ADOPT:
            self._adopted(moment)
        elif moment.event in _STEPS:
            self._step(moment)
        elif moment.event in _ENDS:
            self._end(moment)

    def past(self, now_s: float) -> Past:
        """Returns all that was read; what has not ended goes on."""
        now_s = max([now_s, *(life.seen_at for life in self._lives)])
        for life in self._alive.values():
            life.close(now_s, End.OPEN)
        for life in self._replaced.values():
            life.close(life.seen_at, End.LOST)
        return Past(
            lives=tuple(life.told() for life in self._lives),
            incidents=tuple(self._incidents),
            began_at=self._began_at,
            now_s=now_s,
        )

    # Beginnings.

    def _offered(self, moment: Moment) -> None:
        before = self._alive.pop((moment.queue, moment.key), None)
        if before is not None:
            self._lose(self._replaced.pop((moment.queue, moment.key), None))
            self._replaced[moment.queue, moment.key] = before
        life = self._new(moment)
        life.begin(Phase.WAITING, moment.at_s)
        life.sender = moment.who
        life.payload_bytes = _number_in("payload_bytes", moment.words)
        life.policy_version = _number_in("policy_version", moment.words)

    def _adopted(self, moment: Moment) -> None:
        life = self._new(moment)
        life.begin(_state_in(moment.words), moment.at_s, is_known=False)
        life.trainer = moment.who
        if moment.slot >= 0:
            self._vacate(moment.slot)
            self._in_slot[moment.slot] = life

    def _new(self, moment: Moment) -> _Growing:
        self._lose(self._alive.get((moment.queue, moment.key)))
        life = _Growing(moment)
        self._lives.append(life)
        self._alive[moment.queue, moment.key] = life
        return life

    # What follows.

    def _step(self, moment: Moment) -> None:
        life = self._of(moment) or self._from_before(moment)
        if life.phase not in _BEFORE[moment.event]:
            life.close(life.seen_at, End.LOST)
        life.close(moment.at_s, End.KNOWN)
        if moment.slot >= 0:
            self._enter_slot(life, moment)
        life.begin(_STEPS[moment.event], moment.at_s)
        if life.phase not in _IN_A_SLOT:
            self._leave_slot(life)
        if moment.event == Event.LENT:
            life.trainer = moment.who

    def _end(self, moment: Moment) -> None:
        name = moment.queue, moment.key
        if moment.words == _REPLACED and name in self._replaced:
            life = self._replaced.pop(name)
        else:
            life = self._of(moment) or self._from_before(moment)
            self._alive.pop(name, None)
        life.close(moment.at_s, End.KNOWN)
        life.seen_at, life.outcome, life.reason = moment.at_s, moment.event, moment.words
        self._leave_slot(life)

    def _of(self, moment: Moment) -> _Growing | None:
        """Returns the life that a moment belongs to; if another one of that key was thought alive, it is not."""
        life = self._alive.get((moment.queue, moment.key))
        if life is None or self._fits(life, moment):
            return life
        self._lose(life)
        return None

    def _fits(self, life: _Growing, moment: Moment) -> bool:
        if life.generation == 0:
            return life.phase is not Phase.WAITING or moment.event in _OF_WAITING
        return life.generation == moment.generation

    def _from_before(self, moment: Moment) -> _Growing:
        """Makes a life whose moments up to now are forgotten; what must have been so until now was."""
        life = self._new(moment)
        before = _BEFORE.get(moment.event, (None,))[0]
        # What never had a slot here was on a device before the daemon heard of it: nobody knows since when.
        if before is not None and moment.generation:
            life.begin(before, self._began_at, is_known=False)
            life.seen_at = moment.at_s
        return life

    # Slots.

    def _enter_slot(self, life: _Growing, moment: Moment) -> None:
        if self._in_slot.get(moment.slot) is not life:
            self._vacate(moment.slot)
        life.slot, life.generation = moment.slot, moment.generation
        self._in_slot[moment.slot] = life

    def _leave_slot(self, life: _Growing) -> None:
        if self._in_slot.get(life.slot) is life:
            del self._in_slot[life.slot]

    def _vacate(self, slot: int) -> None:
        """Notes that whoever was in a slot cannot be there any more."""
        life = self._in_slot.get(slot)
        if life is not None and life.phase in _IN_A_SLOT:
            self._lose(life)

    def _lose(self, life: _Growing | None) -> None:
        """Notes that a life went on, or ended, without a word."""
        if life is None:
            return
        life.close(life.seen_at, End.LOST)
        for places in (self._alive, self._replaced):
            if places.get((life.queue, life.key)) is life:
                del places[life.queue, life.key]
        self._leave_slot(life)


def _state_in(words: str) -> Phase | None:
    return next((phase for phase in Phase if f"state={phase.name}" in words.split()), None)


def _number_in(name: str, words: str) -> int | None:
    found = re.search(rf"(?:^| ){name}=(\d+)(?: |$)", words)
    return int(found[1]) if found else None
