"""What is known of one micro-batch, and what can be said of it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from forebay.wire import Moment, Peeked, QueueStatus, Status

from ..words import age
from .diagnosis import NOT_BACK

_CODE = "code="


class Case(enum.StrEnum):
    """Where a micro-batch can be, as far as somebody has to do something else for each."""

    NEVER_OFFERED = "never_offered"
    OTHER_QUEUE = "other_queue"
    FORGOTTEN = "forgotten"
    REFUSED = "refused"
    WAITS_FOR_SLOT = "waits_for_slot"
    SLOT_GROWS = "slot_grows"
    FILLING = "filling"
    SENDER_SLOW = "sender_slow"
    SENDER_SILENT = "sender_silent"
    PAUSED = "paused"
    NO_TRAINER = "no_trainer"
    TRAINER_NOT_BACK = "trainer_not_back"
    TRAINER_WANTS_OTHERS = "trainer_wants_others"
    TRAINER_BUSY = "trainer_busy"
    TRAINER_STILL = "trainer_still"
    NEXT = "next"
    LENT = "lent"
    QUARANTINED = "quarantined"
    ON_DEVICE = "on_device"
    CONSUMED = "consumed"
    DROPPED = "dropped"
    REPLACED = "replaced"
    STALE = "stale"
    LOST = "lost"


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a micro-batch.

    Attributes:
        queue: Its queue, as asked for.
        key: Its key.
        peeked: What the daemon tells; None if it knows no such micro-batch.
        moments: What has happened to that key, in all queues, in order.
        status: What the daemon holds.
        now_s: The daemon's monotonic second, by which moments are told.
    """

    queue: str
    key: str
    peeked: Peeked | None
    moments: Sequence[Moment]
    status: Status
    now_s: float

    @property
    def own(self) -> list[Moment]:
        """The moments of the queue that was asked for."""
        return [moment for moment in self.moments if moment.queue == self.queue]

    @property
    def train_queue(self) -> QueueStatus | None:
        """The queue, if the daemon knows it."""
        return next((queue for queue in self.status.queues if queue.name == self.queue), None)

    @property
    def holder_is_back(self) -> bool:
        """Whether the trainer that has it, if one does, has attached to this daemon."""
        queue, peeked = self.train_queue, self.peeked
        if queue is None or peeked is None or peeked.holder != queue.trainer:
            return True
        return queue.trainer_is_back

    def ago(self, moment: Moment) -> str:
        """Spells how long ago something was."""
        return f"{age(self.now_s - moment.at_s)} ago"


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """What is so, and what to do.

    Attributes:
        case: Which of the cases.
        words: Where it is, who or what it waits for, and for how long.
        remedy: What to do.
    """

    case: Case
    words: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.words[:1].upper()}{self.words[1:]}. {self.remedy[:1].upper()}{self.remedy[1:]}."


def not_back(words: str) -> Judgement:
    """Judges what a trainer has that a daemon before this one knew.

    Args:
        words: Where it is, and whose.
    """
    remedy = "look at the trainer: it comes back by itself, unless it stands still"
    return Judgement(Case.TRAINER_NOT_BACK, f"{words}; the trainer {NOT_BACK}", remedy)


def refusal_of(moment: Moment) -> tuple[str, str]:
    """Returns a refusal's code and what was said."""
    code, _, said = moment.words.partition(" ")
    return (code.removeprefix(_CODE), said) if code.startswith(_CODE) else ("", moment.words)
