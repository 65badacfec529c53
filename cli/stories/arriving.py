"""What can be said of a micro-batch that waits for a slot, or is filling one."""

from __future__ import annotations

from forebay.wire import OfferStatus, Peeked, SlotStatus, Status

from ..words import age, counted, named, quoted, size
from .diagnosis import HOLDING_UP, SILENT_S, Finding, diagnose, held, silence
from .seen import Case, Judgement, Seen

_SLOW_S = 10.0
"""Seconds of filling, behind and ahead, from which on a sender is called slow."""
_SHOWN_SLOTS = 4


def offered(seen: Seen, peeked: Peeked) -> Judgement:
    """Judges one that waits for a slot."""
    if peeked.slot >= 0:
        words = f"it is offered, and slot {peeked.slot} grows for its {size(peeked.payload_bytes)},"
        words += f" so far for {age(peeked.age_s)}"
        return Judgement(Case.SLOT_GROWS, words, "wait: large slots take seconds; slot_initial_bytes saves that")
    place, offer = _offer_of(seen)
    words = f"it is offered, and has waited for a slot for {age(peeked.age_s)}"
    if place > 0:
        words += f" behind {counted(place, 'other offer')}"
    if offer is not None:
        words += f", and is refused in {age(offer.left_s)}"
    culprit = _holding_up(seen)
    words += f"; {held(seen.status)}: {_holders(seen.status)}"
    if culprit is not None:
        return Judgement(Case.WAITS_FOR_SLOT, f"{words}; {culprit.words}", culprit.remedy)
    return Judgement(Case.WAITS_FOR_SLOT, words, "wait, or give the pool more slots (slots)")


def _offer_of(seen: Seen) -> tuple[int, OfferStatus | None]:
    for place, offer in enumerate(seen.status.offers):
        if (offer.queue, offer.key) == (seen.queue, seen.key):
            return place, offer
    return -1, None


def _holding_up(seen: Seen) -> Finding | None:
    """Returns what keeps the slots from becoming free, if anything does."""
    queues = {slot.queue for slot in seen.status.slots if slot.key} | {""}
    return next((one for one in diagnose(seen.status) if one.fault in HOLDING_UP and one.queue in queues), None)


def _holders(status: Status) -> str:
    """Says what the slots hold, those that are held longest first."""
    slots = sorted((slot for slot in status.slots if slot.key), key=lambda slot: -slot.age_s)
    shown = ", ".join(map(_held_by, slots[:_SHOWN_SLOTS]))
    if not slots:
        return "those that are FREE are too small, and cannot grow"
    return shown if len(slots) <= _SHOWN_SLOTS else f"{shown} and {len(slots) - _SHOWN_SLOTS} more"


def _held_by(slot: SlotStatus) -> str:
    if slot.holder is not None:
        return f"{quoted(slot.key)} with {named(slot.holder)} for {age(slot.held_s)}"
    return f"{quoted(slot.key)} {slot.state} for {age(slot.age_s)}"


def filling(seen: Seen, peeked: Peeked) -> Judgement:
    """Judges one whose bytes are on their way."""
    slot = _slot_of(seen, peeked)
    if slot is None or not slot.expected_bytes:
        words = f"slot {peeked.slot} is filling with it, for {age(peeked.age_s)}"
        return Judgement(Case.FILLING, words, "wait for the sender")
    if slot.silent_s >= SILENT_S:
        words = f"slot {slot.index} is filling with it, and {silence(slot)}"
        return Judgement(Case.SENDER_SILENT, words, _silent_remedy(seen, slot))
    rate = slot.received_bytes / max(slot.age_s, 1e-3)
    left_s = (slot.expected_bytes - slot.received_bytes) / max(rate, 1e-3)
    words = f"slot {slot.index} is filling with it, for {age(slot.age_s)}:"
    words += f" {slot.received_bytes / slot.expected_bytes:.0%} of {size(slot.expected_bytes)} is there,"
    words += f" at {size(int(rate))}/s from {named(slot.sender, 'its sender')}"
    if slot.age_s >= _SLOW_S and left_s >= _SLOW_S:
        words += f"; at that rate the rest takes {age(left_s)}"
        return Judgement(Case.SENDER_SLOW, words, "look at the network, and at what the sender's host does")
    return Judgement(Case.FILLING, words, "wait for the sender")


def _slot_of(seen: Seen, peeked: Peeked) -> SlotStatus | None:
    place = (peeked.slot, peeked.generation)
    return next((slot for slot in seen.status.slots if (slot.index, slot.generation) == place), None)


def _silent_remedy(seen: Seen, slot: SlotStatus) -> str:
    heard_s = next((one.heard_s for one in seen.status.peers if one.peer == slot.sender), None)
    if heard_s is not None and heard_s < SILENT_S:
        return (
            f"it spoke on its control connection {age(heard_s)} ago, so it lives: see what is between it and the"
            " data endpoint"
        )
    return "see whether it lives, and the network to its host; it may go on where it stopped, also after that"
