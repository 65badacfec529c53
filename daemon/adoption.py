"""What a pool that a dead daemon left behind still holds."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator

import msgspec

from forebay.shm import Outcome, Pool, Slot, SlotFile, SlotState, holder_path, holder_peer, is_held
from forebay.sockets import tell
from forebay.wire import UNLIMITED, Event, ForebayError, HostError, Peer, decode_manifest

from .micro_batch import FoundSlot
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
    """Reads the journal, every slot's header, and who holds something; then the locks of the dead are removed.

    A slot whose envelope cannot be read becomes FREE, unless a live trainer may still read it: then it stays as it
    is, out of use until the trainer is gone and the daemon starts anew.

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
            occupied.append(_read(file, now))
        except (ForebayError, msgspec.DecodeError) as error:
            fields = {"slot": slot.index, "state": slot.state.name, "reason": str(error)}
            tell(log, logging.WARNING, Event.SLOT_UNREADABLE, **fields)
            holder = file.header().holder
            if not holder or not is_held(holder_path(pool.path, holder)):
                slot.state = SlotState.FREE
                file.write_state(SlotState.FREE)
    outcomes = pool.outcomes.take_found()
    holders = {found.holder for found in occupied} | {outcome.holder for outcome in outcomes}
    peers = dict(_peers(pool, holders - {""}))
    # Not before: of a trainer that died with the daemon, its lock alone says who it was.
    pool.remove_dead_holders()
    return Found(slots, occupied, outcomes, peers)


def _peers(pool: Pool, holders: Iterable[str]) -> Iterator[tuple[str, Peer]]:
    for holder in holders:
        with contextlib.suppress(HostError):  # a damaged name
            if (peer := holder_peer(pool.path, holder)) is not None:
                yield holder, shortened(peer)


def _read(file: SlotFile, now: float) -> FoundSlot:
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
        ready_at=_past(header.ready_at, now),
        # The daemon before may have been killed between this and the state that it goes with.
        lent_at=0.0 if header.state is SlotState.READY else _past(header.lent_at, now),
    )


def _past(second: float, now: float) -> float:
    """Returns a second of a header, over which there is no checksum; now, if it cannot be one."""
    return second if 0 < second <= now else now
