"""What can be said of a micro-batch that is READY, lent or quarantined."""

from __future__ import annotations

from forebay.wire import Peeked, QueueStatus

from ..words import age, counted, listed, named, quoted
from .diagnosis import TRANSFER_S, Fault, diagnose, holding, nowhere
from .seen import Case, Judgement, Seen, not_back


def ready(seen: Seen, peeked: Peeked) -> Judgement:
    """Judges one whose bytes are all in a slot."""
    if peeked.slot_state == "QUARANTINED":
        words = f"slot {peeked.slot} with it was let go of by {named(peeked.holder, 'its trainer')}, whose process"
        words += " still holds its lock: the slot is QUARANTINED until the process is gone"
        return Judgement(Case.QUARANTINED, words, "end that process; it is READY again then, in its old place")
    if peeked.slot_state == "LENT":
        return _lent(seen, peeked)
    words = f"it has been READY in slot {peeked.slot} for {age(peeked.age_s)}"
    if peeked.place > 0:
        words += f", behind {counted(peeked.place, 'other')}"
    if seen.status.stopping:
        words += "; the daemon stops, and only keep_pool keeps it"
    case, why, remedy = _unlent(seen)
    return Judgement(case, f"{words}; {why}", remedy)


def _lent(seen: Seen, peeked: Peeked) -> Judgement:
    words = f"slot {peeked.slot} has been lent to {named(peeked.holder, 'its trainer')} for {age(peeked.held_s)},"
    words += " and it is not on the device yet"
    queue = seen.train_queue
    if not seen.holder_is_back:
        return not_back(words)
    if queue is not None and not queue.on_device and peeked.held_s >= TRANSFER_S:
        remedy = "look at the trainer: few transfers take that long"
        return Judgement(Case.TRAINER_STILL, f"{words}; the trainer {holding(queue)}", remedy)
    if queue is not None and queue.on_device:
        words += f"; the trainer {holding(queue)}"
        remedy = "wait: it is promoted when there is room; if its device is full for long, look at the trainer"
        return Judgement(Case.LENT, words, remedy)
    return Judgement(Case.LENT, words, "wait for the transfer; if it takes long, look at the trainer")


_PASSED = {
    Fault.PAUSED: Case.PAUSED,
    Fault.NO_TRAINER: Case.NO_TRAINER,
    Fault.NOT_BACK: Case.TRAINER_NOT_BACK,
    Fault.STILL: Case.TRAINER_STILL,
    Fault.UNPROMOTED: Case.TRAINER_STILL,
}


def _unlent(seen: Seen) -> tuple[Case, str, str]:
    """Says why a READY micro-batch is not lent."""
    for found in diagnose(seen.status):
        if found.fault in _PASSED and found.queue in ("", seen.queue):
            return _PASSED[found.fault], found.words, found.remedy
    queue = seen.train_queue
    if queue is None or queue.trainer is None:
        return Case.NO_TRAINER, f"queue {quoted(seen.queue)} has no trainer", "start one that attaches to it"
    others = tuple(key for key in queue.waits_for if key != seen.key)
    who = named(queue.trainer)
    if others:
        words = f"the trainer, {who}, has waited for {listed(others)} instead for {age(queue.asks_s)}"
        if missing := nowhere(queue, seen.status):
            return _wants(f"{words}; nobody has offered {listed(missing)}")
        return _wants(words)
    if queue.asks_s:
        return Case.NEXT, f"the trainer, {who}, asks for more: it is lent any moment", "wait"
    return _busy(seen, queue)


def _wants(words: str) -> tuple[Case, str, str]:
    return Case.TRAINER_WANTS_OTHERS, words, "compare the keys of sender and trainer, or wait for those"


def _busy(seen: Seen, queue: QueueStatus) -> tuple[Case, str, str]:
    lent = [slot.key for slot in seen.status.slots if slot.queue == queue.name and slot.holder is not None]
    words = f"the trainer, {named(queue.trainer)}, {holding(queue)}"
    if lent:
        words += f", holds {listed(lent)}"
    if not queue.on_device:
        return Case.TRAINER_BUSY, f"{words}, and asks for no more", "wait; if that takes long, look at the trainer"
    words += ", and asks for no more until a step ends"
    return (
        Case.TRAINER_BUSY,
        words,
        "wait; if a step takes long, see whether it compiles or stands still",
    )
