"""What one micro-batch is about: where it is, who or what it waits for, for how long, and what to do.

A pure function of what the daemon tells of the key, of what has happened to it, and of the daemon's status.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from forebay.wire import Event, MicroBatchState, Peeked, RefusalCode

from . import arriving, promoted, staged
from .seen import Case, Judgement, Seen, refusal_of
from .unknown import unknown


def judge(seen: Seen) -> Judgement:
    """Judges a micro-batch."""
    if seen.peeked is None:
        return unknown(seen)
    found = _BY_STATE[seen.peeked.state](seen, seen.peeked)
    notes = "".join(f"; {note}" for note in _notes(seen, found.case))
    return dataclasses.replace(found, words=found.words + notes)


def _notes(seen: Seen, case: Case) -> Iterator[str]:
    own = seen.own
    offered = [index for index, moment in enumerate(own) if moment.event == Event.OFFERED]
    latest = own[offered[-1]] if offered else None
    if (
        case is not Case.REPLACED
        and any(m.event == Event.DROPPED and m.words == "replaced" for m in own)
        and latest
    ):
        by = f" by {latest.who}" if latest.who else ""
        yield f"it took the place of an earlier attempt {seen.ago(latest)}{by}"
    later = [moment for moment in own[offered[-1] + 1 if offered else 0 :] if moment.event == Event.REFUSE]
    if later and refusal_of(later[-1])[0] not in (RefusalCode.REPLACED, RefusalCode.DROPPED):
        code, said = refusal_of(later[-1])
        yield f"another attempt was refused {seen.ago(later[-1])} ({code}): {said}"


_BY_STATE: dict[MicroBatchState, Callable[[Seen, Peeked], Judgement]] = {
    MicroBatchState.OFFERED: arriving.offered,
    MicroBatchState.FILLING: arriving.filling,
    MicroBatchState.READY: staged.ready,
    MicroBatchState.ON_DEVICE: promoted.on_device,
    MicroBatchState.CONSUMED: promoted.consumed,
    MicroBatchState.DROPPED: promoted.dropped,
    MicroBatchState.LOST: promoted.lost,
}
