"""A slot's life, as one table. State is assigned nowhere but in `SlotTable.apply`."""

from __future__ import annotations

import enum


class SlotState(enum.IntEnum):
    """Where a slot is; the numbers are those in the slot file's header."""

    FREE = 0
    FILLING = 1
    READY = 2
    LENT = 3
    QUARANTINED = 4


class SlotEvent(enum.StrEnum):
    """What happens to a slot."""

    LOAN = "loan"
    PUBLISH = "publish"
    LEND = "lend"
    RELEASE = "release"
    ABANDON = "abandon"
    DROP = "drop"
    HOLDER_DIED = "holder died"
    HOLDER_LOCK_FREE = "holder's lock is free"


_S, _E = SlotState, SlotEvent

SLOT_TRANSITIONS: dict[tuple[SlotState, SlotEvent], SlotState] = {
    (_S.FREE, _E.LOAN): _S.FILLING,
    (_S.FILLING, _E.PUBLISH): _S.READY,
    (_S.FILLING, _E.ABANDON): _S.FREE,
    (_S.READY, _E.LEND): _S.LENT,
    (_S.READY, _E.DROP): _S.FREE,
    (_S.LENT, _E.RELEASE): _S.FREE,
    (_S.LENT, _E.HOLDER_DIED): _S.QUARANTINED,
    (_S.QUARANTINED, _E.HOLDER_LOCK_FREE): _S.READY,
    # A holder that was given up says after all that it is done: to offer the slot again would train it twice.
    (_S.QUARANTINED, _E.RELEASE): _S.FREE,
}
"""Every legal move of a slot; a missing entry is an illegal one."""
