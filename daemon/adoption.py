"""What a pool that a dead daemon left behind still holds."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator

import msgspec

from forebay.shm import (
    MAX_COUNT,
    Outcome,
    Pool,
    Slot,
    SlotFile,
    SlotHeader,
    SlotState,
    holder_path,
    holder_peer,
    is_held,
)
from forebay.sockets import tell
from forebay.wire import UNLIMITED, Event, ForebayError, HostError, Peer, decode_manifest

from .micro_batch import FoundSlot, past_second
from .peers import shortened

log = logging.getLogger("forebay.daemon")


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What is in a pool at the daemon's start.

    Attributes:
        slots: Every slot, for the slot table.
        occupied: Those that hold a complete micro-batch.
        outcomes: The journal, oldest first.
        holders: Who has, or had, something of it, by the names of the locks that still say so.
    """

    slots: list[Slot]
    occupied: list[FoundSlot]
    outcomes: list[Outcome]
    holders: dict[str, Peer]


def found_in(pool: Pool, now: float) -> Found:
    """Reads the journal, every slot's header, and who holds something.

    A slot that cannot be read becomes FREE, unless a live trainer may still read it: then it stays as it is, out
    of use until the trainer is gone and the daemon starts anew.

    Args:
        pool: The pool, which this daemon holds.
        now: Monotonic second.
    """
    slots = pool.found_slots()
    occupied = []
    for slot in slots:
        if slot.state is SlotState.FREE:
            continue
        file = pool.files[slot.index]
        try:
            occupied.append(_read(pool, file, now))
        except (ForebayError, msgspec.DecodeError) as error:
            fields = {"slot": slot.index, "state": slot.state.name, "reason": str(error)}
            tell(log, logging.WARNING, Event.SLOT_UNREADABLE, **fields)
            if not _may_be_read(pool, file.header()):
                slot.state = SlotState.FREE
                file.write_state(SlotState.FREE)
    outcomes = pool.outcomes.take_found()
    holders = {found.holder for found in occupied} | {outcome.holder for outcome in outcomes}
    return Found(slots, occupied, outcomes, dict(_peers(pool, holders - {""})))


def _may_be_read(pool: Pool, header: SlotHeader) -> bool:
    """Whether a trainer may read a slot now: one that lives, or one whose name is damaged."""
    if header.state is SlotState.READY:
        return False
    try:
        return is_held(holder_path(pool.path, header.holder))
    except HostError:
        return True


def _peers(pool: Pool, holders: Iterable[str]) -> Iterator[tuple[str, Peer]]:
    for holder in holders:
        with contextlib.suppress(HostError):  # a name that is none
            if (peer := holder_peer(pool.path, holder)) is not None:
                yield holder, shortened(peer)


def _read(pool: Pool, file: SlotFile, now: float) -> FoundSlot:
    header = file.header()
    # A READY slot has none, whatever a daemon had written that was killed before it wrote the state.
    holder, lent_at = "", 0.0
    if header.state is not SlotState.READY:
        holder, lent_at = holder_path(pool.path, header.holder).name, past_second(header.lent_at, now)
    for what, count in (("generation", header.generation), ("sequence", header.sequence)):
        if count > MAX_COUNT:
            raise HostError(f"the slot's {what} is damaged", got=count, limit=MAX_COUNT)
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
        ready_at=past_second(header.ready_at, now),
        holder=holder,
        lent_at=lent_at,
    )
