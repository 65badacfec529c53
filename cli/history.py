"""What the daemon remembers, read in order: page after page, also across its restarts."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence
from typing import Final

from forebay.wire import MAX_MOMENTS, Events, GetEvents, Moment

from .inspector import Conversation

FOLLOW_S: Final = 20.0
"""Seconds for which the daemon keeps a question open; less than a client takes for its end."""
_WHAT = "what has happened"
_JITTER_S = 0.5


@dataclasses.dataclass(slots=True)
class Reading:
    """How far the moments of a daemon were read.

    Attributes:
        queue: Only those about this queue; empty for all.
        key: Only those about this key; empty for all.
        after: Number of the last one that is known.
        epoch: The run of the daemon that it is of; empty before the first answer.
    """

    queue: str = ""
    key: str = ""
    after: int = 0
    epoch: str = ""

    def question(self, follow_s: float = 0.0) -> GetEvents:
        """Returns what to ask next."""
        return GetEvents(after=self.after, queue=self.queue, key=self.key, follow_s=follow_s)

    def take(self, answer: Events) -> list[Moment]:
        """Returns what an answer tells: its moments, and one that tells what cannot be told any more."""
        if self.epoch and answer.epoch != self.epoch:
            # Its numbers mean other moments here: what came with them is asked for again, from the start.
            self.epoch, self.after = answer.epoch, 0
            words = "another run of the daemon answers; what the one before did not tell is lost"
            return [_note(answer, "restarted", words)]
        missed = answer.oldest - self.after - 1 if self.epoch else 0
        self.epoch, self.after = answer.epoch, answer.last
        if missed <= 0:
            return list(answer.moments)
        words = f"{missed} moments of all queues are forgotten: more happened than remembered_events keeps"
        return [_note(answer, "missed", words), *answer.moments]


def _note(answer: Events, event: str, words: str) -> Moment:
    """Makes a moment that no daemon has told: without a number."""
    return Moment(number=0, at_s=answer.now_s, event=event, words=words)


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """Tells the local time of a moment.

    Attributes:
        now_s: Now, in monotonic seconds of the daemon's host, as an answer told it.
        local_s: Seconds since 1970 by this host's clock, when the answer came.
    """

    now_s: float
    local_s: float

    def at(self, at_s: float) -> datetime.datetime:
        """Returns the local time of a monotonic second of the daemon's host."""
        return datetime.datetime.fromtimestamp(self.local_s - (self.now_s - at_s)).astimezone()

    def spell(self, at_s: float) -> str:
        """Spells the same as a time of the day."""
        return f"{self.at(at_s):%H:%M:%S.%f}"[:-3]

    def spell_whole(self, at_s: float) -> str:
        """Spells the same for programs, with day and time zone."""
        return self.at(at_s).isoformat(timespec="milliseconds")

    def back_at(self, at_s: float) -> Clock:
        """Returns what tells the same times, as of an earlier second."""
        return Clock(at_s, self.local_s - (self.now_s - at_s))

    def agrees(self, other: Clock) -> bool:
        """Whether both would tell the same time, but for what an answer takes."""
        return abs((self.local_s - self.now_s) - (other.local_s - other.now_s)) < _JITTER_S


async def read_all(
    daemon: Conversation, reading: Reading, tell: Callable[[int], None] = lambda _: None
) -> tuple[list[Moment], Clock]:
    """Reads on up to now; those that happen meanwhile need not be among them.

    Args:
        daemon: That is asked.
        reading: How far it was read; goes on.
        tell: Called with the number of moments so far, after each page.

    Returns:
        The moments, and what tells their times and up to when they are all.

    Raises:
        As `Conversation.ask`.
    """
    moments: list[Moment] = []
    run, until_s = "", 0.0
    while True:
        answer = await daemon.ask(reading.question(), Events, _WHAT)
        if answer.epoch != run:
            run, until_s = answer.epoch, answer.now_s
        moments += reading.take(answer)
        tell(len(moments))
        if reading.after != answer.last:
            continue
        clock = Clock(answer.now_s, time.time())
        if len(answer.moments) < MAX_MOMENTS:
            return moments, clock
        if answer.moments[-1].at_s >= until_s:  # whoever is slower than the daemon would read for ever
            return moments, clock.back_at(answer.moments[-1].at_s)


def unbroken(moments: Sequence[Moment]) -> Sequence[Moment]:
    """Returns the moments after the last gap, which are of one run of the daemon."""
    first = next((index for index in range(len(moments), 0, -1) if not moments[index - 1].number), 0)
    return moments[first:]


async def read_last(daemon: Conversation, reading: Reading, count: int) -> tuple[Sequence[Moment], Clock]:
    """Reads the last so many moments, and what comes while it reads; see `read_all`."""
    now = await daemon.ask(GetEvents(after=-1, limit=1), Events, _WHAT)
    is_filtered = bool(reading.queue or reading.key)
    # Of those that a filter lets through nobody knows how far back the last ones lie.
    reading.after = max(now.oldest - 1, 0 if is_filtered else now.last - count)
    moments, clock = await read_all(daemon, reading)
    return moments[-count:] if count else [], clock


async def read_next(daemon: Conversation, reading: Reading, follow_s: float) -> tuple[list[Moment], Clock]:
    """Waits for what comes, and reads it: nothing if nothing has come in that time; see `read_all`."""
    answer = await daemon.ask(reading.question(follow_s), Events, "what happens next", more_s=follow_s)
    return reading.take(answer), Clock(answer.now_s, time.time())
