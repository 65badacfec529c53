"""Why a host's micro-batches do not get on, from one look at its daemon: what is found, in a line each."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Final

from forebay.wire import FaultStatus, QueueStatus, SlotStatus, Status, printable

from ..words import age, counted, listed, named, quoted, size

SILENT_S = 3.0
"""Seconds without a byte after which a sender is called silent: also a slow link brings a chunk sooner."""
SOON_S = 1.0
"""Seconds in which things come right by themselves, all the time."""
TRANSFER_S = 10.0
"""Seconds in which a large micro-batch is on the device."""
STILL_S = 5.0
"""Seconds in which a trainer with nothing on its device takes what is READY, or does something short before."""
LONG_S = 60.0
"""Seconds on the device that are worth a line while no sender waits: most steps are shorter."""
LATELY_S = 600.0
"""Seconds for which a handshake that failed is told of: whoever still needs a key tries again sooner."""
_MEMORY_SHARE = 0.8
_HANDSHAKE = "handshake_failed_"
_ONLY_LOOKED = "hung_up"
"""Most of these are no peers: whoever looks whether a port is open hangs up."""


class Fault(enum.StrEnum):
    """What can be found."""

    STOPPING = "stopping"
    DRAINING = "draining"
    PAUSED = "paused"
    NO_TRAINER = "no_trainer"
    NOT_BACK = "not_back"
    HOLDS_ALL = "holds_all"
    BUSY = "busy"
    STILL = "still"
    UNPROMOTED = "unpromoted"
    NOT_OFFERED = "not_offered"
    STARVED = "starved"
    SILENT = "silent"
    QUARANTINED = "quarantined"
    WAITING = "waiting"
    MEMORY = "memory"
    HANDSHAKES = "handshakes"


HOLDING_UP: Final = frozenset(
    {Fault.PAUSED, Fault.NO_TRAINER, Fault.NOT_BACK, Fault.HOLDS_ALL, Fault.BUSY, Fault.NOT_OFFERED, Fault.SILENT}
    | {Fault.QUARANTINED, Fault.STILL, Fault.UNPROMOTED}
)
"""What keeps slots from becoming free."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something that keeps micro-batches from getting on.

    Attributes:
        fault: What kind of thing.
        words: What is so.
        remedy: What to do.
        queue: That it is about; empty for the whole daemon.
    """

    fault: Fault
    words: str
    remedy: str
    queue: str = ""

    def __str__(self) -> str:
        return f"{self.words}; {self.remedy}"


def diagnose(status: Status) -> list[Finding]:
    """Finds what keeps micro-batches from getting on; what stops most comes first."""
    found = [*_of_daemon(status)]
    for queue in status.queues:
        found += _of_queue(queue, status)
    found += _of_slots(status)
    found += _of_offers(status, is_explained=any(one.fault in HOLDING_UP for one in found))
    found += _of_bounds(status)
    return found


def _of_daemon(status: Status) -> Iterator[Finding]:
    if status.stopping:
        words = "the daemon stops: it takes nothing in, and ends when nothing is filling any more"
        yield Finding(Fault.STOPPING, words, "start it again when it has ended (forebay serve)")
    elif status.draining:
        words = "an operator drains the daemon: it takes nothing in"
        yield Finding(Fault.DRAINING, words, "take that back with forebay resume")
    if status.paused:
        words = "an operator has paused all queues: nothing more is lent"
        yield Finding(Fault.PAUSED, words, "take that back with forebay resume")


def _of_queue(queue: QueueStatus, status: Status) -> Iterator[Finding]:
    if queue.paused and not status.paused:
        words = f"an operator has paused queue {quoted(queue.name)}: {_ready(queue)}, and nothing more is lent"
        yield Finding(Fault.PAUSED, words, f"take that back with forebay resume {quoted(queue.name)}", queue.name)
    if queue.trainer is None:
        yield from _without_trainer(queue)
    elif not queue.trainer_is_back:
        yield _not_back(queue, status)
    else:
        yield from _with_trainer(queue, status)


def _ready(queue: QueueStatus) -> str:
    return f"{counted(len(queue.ready), 'micro-batch', 'micro-batches')} READY"


def _without_trainer(queue: QueueStatus) -> Iterator[Finding]:
    if not queue.ready:
        return
    words = f"queue {quoted(queue.name)} has {_ready(queue)} and no trainer"
    remedy = "start one that attaches to this queue"
    if queue.last_trainer is not None:
        least = "" if queue.was_seen_to_go else "at least "
        words += f": {named(queue.last_trainer)} has been gone for {least}{age(queue.gone_s)}"
        remedy = "see why it ended, and start it again"
    yield Finding(Fault.NO_TRAINER, words, remedy, queue.name)


def _trainer_of(queue: QueueStatus) -> str:
    return f"{named(queue.trainer)}, the trainer of queue {quoted(queue.name)},"


def _not_back(queue: QueueStatus, status: Status) -> Finding:
    words = f"{_trainer_of(queue)} {NOT_BACK}"
    if lent := slots_of(queue, status):
        first = ", the first" if len(lent) > 1 else ""
        words += f"; it holds {counted(len(lent), 'slot')}{first} for {age(max(slot.held_s for slot in lent))}"
    if queue.on_device:
        words += f"; it {holding(queue)}"
    return Finding(
        Fault.NOT_BACK, words, "look at it: it comes back by itself, unless it stands still", queue.name
    )


def _with_trainer(queue: QueueStatus, status: Status) -> Iterator[Finding]:
    who = _trainer_of(queue)
    yield from _of_its_slots(queue, status, who)
    missing = nowhere(queue, status)
    if missing and queue.asks_s >= SOON_S:
        words = f"{who} has waited for {listed(missing)} for {age(queue.asks_s)}, and nobody has offered that"
        remedy = "compare the keys of sender and trainer, or look at the sender"
        yield Finding(Fault.NOT_OFFERED, words, remedy, queue.name)
    elif is_starved(queue) and not queue.waits_for:
        words = f"{who} has asked for more for {age(queue.asks_s)}, and nothing is READY:"
        words += f" {_on_the_way(queue, status)}"
        yield Finding(Fault.STARVED, words, "the senders are the slow side: look at them", queue.name)
    yield from _of_its_device(queue, status, who)


def _of_its_slots(queue: QueueStatus, status: Status, who: str) -> Iterator[Finding]:
    """Finds slots that a trainer keeps; what it holds beside a running step is what it is to hold."""
    lent = slots_of(queue, status)
    held_s = max((slot.held_s for slot in lent), default=0.0)
    if len(lent) == len(status.slots) and held_s >= TRANSFER_S:
        words = f"{who} holds {_all_of(status)}, and has held the first for {age(held_s)}"
        remedy = "it frees a slot with each transfer: look at the trainer, or give the pool more slots (slots)"
        yield Finding(Fault.HOLDS_ALL, words, remedy, queue.name)
    elif lent and not queue.on_device and not queue.waits_for and held_s >= _patience_s(queue, status, TRANSFER_S):
        first = max(lent, key=lambda slot: slot.held_s)
        words = f"{who} has held {quoted(first.key)} in slot {first.index} for {age(held_s)} without promoting it"
        yield Finding(Fault.UNPROMOTED, words, "look at it", queue.name)


def _of_its_device(queue: QueueStatus, status: Status, who: str) -> Iterator[Finding]:
    """Finds a trainer that does not ask for what is READY: its device is busy, or it does something else."""
    if queue.asks_s or not queue.ready:
        return
    if queue.on_device:
        busy_s = max(queue.on_device_s, default=0.0)
        if busy_s >= _patience_s(queue, status, LONG_S):
            yield Finding(Fault.BUSY, f"{who} {holding(queue)}, and asks for no more", _LOOK, queue.name)
    elif _may_take(queue, status) and (idle_s := _untaken_s(queue, status)) >= STILL_S:
        are = f"{counted(len(queue.ready), 'micro-batch is', 'micro-batches are')} READY"
        words = f"{who} has nothing on its device and asks for nothing, though {are}, the first for {age(idle_s)}"
        yield Finding(Fault.STILL, words, "it does something else, or stands still: look at it", queue.name)


def _patience_s(queue: QueueStatus, status: Status, usual_s: float) -> float:
    """Returns after how many seconds a trainer is told of: soon if a sender waits for a slot."""
    waits = any(offer.queue == queue.name and offer.waits_s >= SOON_S for offer in status.offers)
    return SOON_S if waits else usual_s


def _may_take(queue: QueueStatus, status: Status) -> bool:
    return not (slots_of(queue, status) or queue.paused or status.paused)


def _untaken_s(queue: QueueStatus, status: Status) -> float:
    """Returns the seconds for which a queue's trainer could have taken what is READY first."""
    ages = [slot.age_s for slot in status.slots if slot.queue == queue.name and slot.key in queue.ready[:1]]
    return min(queue.trainer_since_s, *ages) if ages else 0.0


NOT_BACK = "lives, and has not come back since the daemon started"
_LOOK = "look at the trainer: it compiles, its step is long, or it stands still"


def is_starved(queue: QueueStatus) -> bool:
    """Tells whether a trainer waits and there is nothing that it could be lent."""
    return queue.asks_s >= SOON_S and not queue.ready and not queue.paused


def nowhere(queue: QueueStatus, status: Status) -> tuple[str, ...]:
    """Returns the keys that a trainer waits for and that are neither in a slot nor offered."""
    known = {slot.key for slot in status.slots if slot.queue == queue.name}
    known |= {offer.key for offer in status.offers if offer.queue == queue.name}
    return tuple(key for key in queue.waits_for if key not in known)


def holding(queue: QueueStatus) -> str:
    """Says what a trainer has on its device, and for how long."""
    if not queue.on_device:
        return "has nothing on its device"
    return f"has {listed(queue.on_device)} on its device, for {age(max(queue.on_device_s, default=0.0))}"


def slots_of(queue: QueueStatus, status: Status) -> list[SlotStatus]:
    """Returns the slots that a queue's trainer was lent."""
    of_queue = (slot for slot in status.slots if slot.queue == queue.name and slot.state == "LENT")
    # A daemon that could not read a slot may have let another trainer attach beside its holder.
    return [slot for slot in of_queue if slot.holder == queue.trainer]


def _all_of(status: Status) -> str:
    return f"all {len(status.slots)} slots" if len(status.slots) > 1 else "the only slot"


def _on_the_way(queue: QueueStatus, status: Status) -> str:
    filling = [slot for slot in status.slots if slot.queue == queue.name and slot.state == "FILLING"]
    waiting = sum(offer.queue == queue.name for offer in status.offers)
    if not filling and not waiting:
        return "nothing is offered either; forebay events says what was dropped lately"
    expected = sum(slot.expected_bytes for slot in filling)
    share = f" ({sum(slot.received_bytes for slot in filling) / expected:.0%})" if expected else ""
    return f"{len(filling)} filling{share}, {waiting} waiting for a slot"


def _of_slots(status: Status) -> Iterator[Finding]:
    for slot in status.slots:
        if slot.state == "FILLING" and slot.silent_s >= SILENT_S:
            words = f"slot {slot.index} is filling with {quoted(slot.key)}, and {silence(slot)}"
            yield Finding(Fault.SILENT, words, "look at the sender, and at the network", slot.queue)
        elif slot.state == "QUARANTINED":
            words = f"slot {slot.index} with {quoted(slot.key)} is QUARANTINED: {named(slot.holder)} let go of it"
            words += ", and its process still holds its lock"
            yield Finding(Fault.QUARANTINED, words, "end that process", slot.queue)


def silence(slot: SlotStatus) -> str:
    """Says that a slot's sender is silent, how far it came, and when the slot is taken back."""
    percent = f"{slot.received_bytes / slot.expected_bytes:.0%}" if slot.expected_bytes else "nothing"
    return (
        f"{named(slot.sender, 'its sender')} has been silent for {age(slot.silent_s)}, at {percent};"
        f" its lease ends in {age(slot.lease_left_s)}"
    )


def _of_offers(status: Status, *, is_explained: bool) -> Iterator[Finding]:
    first = next(iter(status.offers), None)
    if first is None or first.waits_s < SOON_S:
        return
    words = f"{counted(status.waiting_offers, 'offer waits', 'offers wait')} for a slot, the first for"
    words += f" {age(first.waits_s)}, refused in {age(first.left_s)}: {held(status)}"
    remedy = "mend what is told above" if is_explained else "see what holds them (forebay slots)"
    yield Finding(Fault.WAITING, words, f"{remedy}, or give the pool more slots (slots)", first.queue)


def held(status: Status) -> str:
    """Says how many slots are in which state."""
    states = [slot.state for slot in status.slots]
    each = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"of {counted(len(states), 'slot')}, {each}"


def _of_bounds(status: Status) -> Iterator[Finding]:
    bound = status.max_private_bytes
    if bound and status.private_bytes >= _MEMORY_SHARE * bound:
        words = f"the daemon has {size(status.private_bytes)} of private memory, and ends at {size(bound)}"
        yield Finding(Fault.MEMORY, words, "see docs/bounds.md for what takes it, or raise max_private_bytes")
    yield from _of_handshakes(status)


def _of_handshakes(status: Status) -> Iterator[Finding]:
    last = min(filter(_is_handshake, status.faults), key=lambda fault: fault.age_s, default=None)
    if last is None or last.age_s >= LATELY_S:
        return
    failed = {name: count for name, count in status.counters.items() if _counts_handshakes(name)}
    reasons = ", ".join(f"{count} {name.removeprefix(_HANDSHAKE)}" for name, count in failed.items())
    words = f"{counted(sum(failed.values()), 'handshake')} failed since the daemon's start ({reasons}),"
    words += f" the last {age(last.age_s)} ago, by {printable(last.by)}"
    yield Finding(Fault.HANDSHAKES, words, "its log tells more; see docs/security.md")


def _is_handshake(fault: FaultStatus) -> bool:
    return _counts_handshakes(fault.counter)


def _counts_handshakes(counter: str) -> bool:
    return counter.startswith(_HANDSHAKE) and not counter.endswith(_ONLY_LOOKED)
