"""What a pool that a dead daemon left behind still holds."""

from __future__ import annotations

import dataclasses
import logging

import msgspec

from forebay.shm import Pool, Slot, SlotFile, SlotState, holder_path, is_held
from forebay.sockets import tell
from forebay.wire import UNLIMITED, Event, ForebayError, decode_manifest

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


def found_slots(pool: Pool) -> Found:
    """Reads every slot's header.

    A slot whose envelope cannot be read is FREE, unless a live trainer may still read it: then it stays as it is,
    out of use until the trainer is gone and the daemon starts anew.
    """
    slots = pool.found_slots()
    occupied = []
    for slot in slots:
        if slot.state is SlotState.FREE:
            continue
        file = pool.files[slot.index]
        try:
            occupied.append(_read(file))
        except (ForebayError, msgspec.DecodeError) as error:
            fields = {"slot": slot.index, "state": slot.state.name, "reason": str(error)}
            tell(log, logging.WARNING, Event.SLOT_UNREADABLE, **fields)
            holder = file.header().holder
            if not holder or not is_held(holder_path(pool.path, holder)):
                slot.state = SlotState.FREE
                file.write_state(SlotState.FREE)
    return Found(slots, occupied)


def _read(file: SlotFile) -> FoundSlot:
    header = file.header()
    envelope = file.envelope()
    # It was accepted under the limits of its day; today's are for new offers.
    manifest = decode_manifest(envelope.manifest, UNLIMITED)
    return FoundSlot(
        index=file.index,
        generation=header.generation,
        sequence=header.sequence,
        envelope=envelope,
        encoded_envelope=msgspec.msgpack.encode(envelope),
        body_bytes=header.body_bytes,
        payload_bytes=manifest.payload_bytes,
        holder=header.holder,
        ready_at=header.ready_at,
        # A daemon that was killed before it wrote the state had written this.
        lent_at=0.0 if header.state is SlotState.READY else header.lent_at,
    )
