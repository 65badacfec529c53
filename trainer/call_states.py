"""A call's life in the worker, as one table."""

from __future__ import annotations

import enum

from forebay.wire import CallState, LocalError


class CallEvent(enum.StrEnum):
    """What happens to a call."""

    COMPLETE = "complete"
    START = "start"
    END = "end"
    CANCEL = "cancel"
    REFUSE = "refuse"


_S, _E = CallState, CallEvent

CALL_TRANSITIONS: dict[tuple[CallState, CallEvent], CallState] = {
    (_S.RECEIVING, _E.COMPLETE): _S.QUEUED,
    (_S.RECEIVING, _E.CANCEL): _S.OVER,
    (_S.RECEIVING, _E.REFUSE): _S.OVER,
    (_S.QUEUED, _E.START): _S.RUNNING,
    (_S.QUEUED, _E.CANCEL): _S.OVER,
    (_S.QUEUED, _E.REFUSE): _S.OVER,
    (_S.RUNNING, _E.END): _S.OVER,
}
"""Every legal move of a call; a missing entry is an illegal one."""


def moved(state: CallState, event: CallEvent) -> CallState:
    """Returns the state after an event.

    Raises:
        LocalError: The table has no such move.
    """
    after = CALL_TRANSITIONS.get((state, event))
    if after is None:
        raise LocalError(f"a call is {state} and cannot take {event.value!r}")
    return after
