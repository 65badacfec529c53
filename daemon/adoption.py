"""What a pool that a dead daemon left behind still holds."""

from __future__ import annotations

import dataclasses
import logging

import msgspec

from forebay.shm import Pool, Slot, SlotFile, SlotState
from forebay.wire import ForebayError, Limits, decode_manifest

from .micro_batch import FoundSlot

log = logging.getLogger("forebay.daemon")


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The slots of a pool at the daemon's start.

    Attributes:
        slots: Every slot, for the slot table.
        occupied: Those that hold a complete micro-batch.
    """

    slots: list[Slot]
    occupied: list[FoundSlot]


def found_slots(pool: Pool, limits: Limits) -> Found:
    """Reads every slot's header; a slot whose envelope cannot be trusted is FREE."""
    slots = pool.found_slots()
    occupied = []
    for slot in slots:
        if slot.state is SlotState.FREE:
            continue
        file = pool.files[slot.index]
        try:
            occupied.append(_read(file, limits))
        except (ForebayError, msgspec.DecodeError) as error:
            log.warning("slot_unreadable slot=%s reason=%s", slot.index, error)
            slot.state = SlotState.FREE
            file.write_state(SlotState.FREE)
    return Found(slots, occupied)


def _read(file: SlotFile, limits: Limits) -> FoundSlot:
    header = file.header()
    envelope = file.envelope()
    manifest = decode_manifest(envelope.manifest, limits)
    return FoundSlot(
        index=file.index,
        generation=header.generation,
        sequence=header.sequence,
        envelope=envelope,
        encoded_envelope=msgspec.msgpack.encode(envelope),
        body_bytes=header.body_bytes,
        payload_bytes=manifest.payload_bytes,
        holder=header.holder,
    )
