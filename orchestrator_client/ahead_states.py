"""A micro-batch's life in the stage-ahead loop, as one table. State is assigned nowhere but in `Entry.apply`."""

from __future__ import annotations

import enum
import math
from typing import Any

from forebay.wire import LocalError

from .source import Upcoming
from .step_report import Interval, StepReport


class AheadState(enum.StrEnum):
    """Where a micro-batch is."""

    PULLED = "pulled"
    STAGING = "staging"
    STAGED = "staged"
    INLINE = "inline"
    TRAINING = "training"
    SENDING = "sending"
    SENT = "sent"
    TRAINED = "trained"
    FAILED = "failed"
    SKIPPED = "skipped"


class AheadEvent(enum.StrEnum):
    """What happens to a micro-batch."""

    STAGE = "stage"
    ARRIVE = "arrive"
    FALL_BACK = "fall back"
    KEEP = "keep"
    TRAIN = "train"
    SEND = "send"
    FINISH = "finish"
    FAIL = "fail"
    SKIP = "skip"


_S, _E = AheadState, AheadEvent

AHEAD_TRANSITIONS: dict[tuple[AheadState, AheadEvent], AheadState] = {
    (_S.PULLED, _E.STAGE): _S.STAGING,
    (_S.PULLED, _E.KEEP): _S.INLINE,
    (_S.PULLED, _E.FAIL): _S.FAILED,
    (_S.STAGING, _E.ARRIVE): _S.STAGED,
    (_S.STAGING, _E.FALL_BACK): _S.INLINE,
    (_S.STAGING, _E.FAIL): _S.FAILED,
    (_S.STAGING, _E.SKIP): _S.SKIPPED,
    (_S.STAGED, _E.TRAIN): _S.TRAINING,
    (_S.TRAINING, _E.FALL_BACK): _S.INLINE,
    (_S.TRAINING, _E.FINISH): _S.TRAINED,
    (_S.TRAINING, _E.FAIL): _S.FAILED,
    (_S.TRAINING, _E.SKIP): _S.SKIPPED,
    (_S.INLINE, _E.TRAIN): _S.SENDING,
    (_S.INLINE, _E.SKIP): _S.SKIPPED,
    (_S.SENDING, _E.SEND): _S.SENT,
    (_S.SENDING, _E.FINISH): _S.TRAINED,
    (_S.SENDING, _E.FAIL): _S.FAILED,
    (_S.SENT, _E.FINISH): _S.TRAINED,
    (_S.SENT, _E.FAIL): _S.FAILED,
}
"""Every legal move of a micro-batch; a missing entry is an illegal one."""

AHEAD = frozenset({_S.STAGING, _S.STAGED})
"""States in which it counts towards what may be staged."""

LOOKED_AHEAD = AHEAD | {_S.SKIPPED}
"""States in which, while it is in the books, it counts towards how far the loop looks ahead."""

HELD = frozenset({_S.PULLED, _S.INLINE, _S.SENDING})
"""States in which nobody but the loop has its bytes."""

READY = frozenset({_S.STAGED, _S.INLINE})
"""States in which it is trained as soon as it is its turn."""

_PAST_BYTES = frozenset({_S.SENT, _S.TRAINED, _S.FAILED, _S.SKIPPED})
_WITH_TRAINER = frozenset({_S.STAGING, _S.TRAINING, _S.SENDING})


class Entry:
    """A micro-batch in the loop.

    Args:
        upcoming: What it is, and its place.
        report: Of its step.
        pull: When it was pulled.
        expires_at: Second of the loop's clock from which on it is stale; infinite for never.

    Attributes:
        state: Where it is.
        payload: Its bytes; None from the moment on in which the loop needs them no more.
        touched_trainer: Whether the trainer may have something of it.
        stage: When it was staged, if that was tried.
        called_at: When its last call to be trained was made.
        sent_at: When that call was with the worker, as far as is known.
        failure: Why it failed.
    """

    __slots__ = (
        *("called_at", "ends_step", "failure", "index", "key", "payload", "pull", "report", "sent_at", "stage"),
        *("expires_at", "policy_version", "state", "touched_trainer"),
    )

    def __init__(
        self, upcoming: Upcoming, report: StepReport, pull: Interval, *, expires_at: float = math.inf
    ) -> None:
        self.index = upcoming.index
        self.key = upcoming.key
        self.ends_step = upcoming.ends_step
        self.payload: Any = upcoming.payload
        self.policy_version = upcoming.policy_version
        self.expires_at = expires_at
        self.report = report
        self.pull = pull
        self.stage: Interval | None = None
        self.called_at = self.sent_at = 0.0
        self.touched_trainer = False
        self.failure: Exception | None = None
        self.state = AheadState.PULLED

    def __repr__(self) -> str:
        return f"Entry({self.key!r}, {self.state})"

    def upcoming(self) -> Upcoming:
        """Returns it as the caller's predicate sees it."""
        place = (self.report.number, self.index, self.key, self.ends_step)
        return Upcoming(*place, self.payload, self.policy_version)

    def expires_s(self, now: float) -> float | None:
        """Returns the seconds in which it may be trained; None for any number."""
        return None if math.isinf(self.expires_at) else self.expires_at - now

    def apply(self, event: AheadEvent) -> None:
        """Moves the micro-batch.

        Raises:
            LocalError: The table has no such move; nothing has moved.
        """
        after = AHEAD_TRANSITIONS.get((self.state, event))
        if after is None:
            raise LocalError(f"{self!r} cannot take {event.value!r}")
        self.state = after
        self.touched_trainer |= after in _WITH_TRAINER
        if after in _PAST_BYTES:
            self.payload = None
