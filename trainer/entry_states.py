"""A staged entry's life, as one table. State is assigned nowhere but in `Entry.apply`."""

from __future__ import annotations

import enum


class EntryState(enum.StrEnum):
    """Where an entry of the staging queue is."""

    HOST = "host"
    PROMOTING = "promoting"
    ON_DEVICE = "on_device"
    DEMOTING = "demoting"
    IN_STEP = "in_step"
    ABANDONED = "abandoned"
    REJECTED = "rejected"
    GONE = "gone"


class EntryEvent(enum.StrEnum):
    """What happens to an entry."""

    PROMOTE = "promote"
    ARRIVE = "arrive"
    FAIL = "fail"
    REJECT = "reject"
    DEMOTE = "demote"
    RETURN = "return"
    TAKE = "take"
    DISPATCH = "dispatch"
    DROP = "drop"


_S, _E = EntryState, EntryEvent

ENTRY_TRANSITIONS: dict[tuple[EntryState, EntryEvent], EntryState] = {
    (_S.HOST, _E.PROMOTE): _S.PROMOTING,
    (_S.HOST, _E.DROP): _S.GONE,
    (_S.PROMOTING, _E.ARRIVE): _S.ON_DEVICE,
    (_S.PROMOTING, _E.FAIL): _S.HOST,
    (_S.PROMOTING, _E.REJECT): _S.REJECTED,
    (_S.PROMOTING, _E.DROP): _S.ABANDONED,
    (_S.ON_DEVICE, _E.TAKE): _S.IN_STEP,
    (_S.ON_DEVICE, _E.DEMOTE): _S.DEMOTING,
    (_S.ON_DEVICE, _E.DROP): _S.GONE,
    (_S.DEMOTING, _E.RETURN): _S.HOST,
    (_S.DEMOTING, _E.FAIL): _S.ON_DEVICE,
    (_S.DEMOTING, _E.DROP): _S.ABANDONED,
    (_S.IN_STEP, _E.DISPATCH): _S.GONE,
    (_S.REJECTED, _E.TAKE): _S.GONE,
    (_S.REJECTED, _E.DROP): _S.GONE,
    # Dropped while its bytes were under way: whatever the transfer ends in, nobody wants it any more.
    (_S.ABANDONED, _E.ARRIVE): _S.GONE,
    (_S.ABANDONED, _E.FAIL): _S.GONE,
    (_S.ABANDONED, _E.REJECT): _S.GONE,
    (_S.ABANDONED, _E.RETURN): _S.GONE,
}
"""Every legal move of an entry; a missing one is illegal."""

USES_DEVICE = frozenset({_S.PROMOTING, _S.ON_DEVICE, _S.DEMOTING, _S.IN_STEP, _S.ABANDONED})
"""States in which an entry counts towards the cap."""

MOVING = frozenset({_S.PROMOTING, _S.DEMOTING, _S.ABANDONED})
"""States in which its bytes are on their way."""
