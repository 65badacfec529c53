"""The control messages between inspectors and the daemon about what has happened."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .message import Message

MAX_MOMENTS = 1000
"""Moments that one answer tells at most; whoever wants more asks again."""

MAX_FOLLOW_S = 30.0
"""Seconds for which a question about what comes next may stay open."""


class Moment(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Something that happened.

    Attributes:
        number: Counts moments, from 1; those of another run of the daemon have other numbers.
        at_s: Monotonic second of the daemon's host.
        event: What, in the words of the log.
        queue: Of the micro-batch that it is about, or empty.
        key: The same.
        slot: Its slot, or -1.
        generation: That slot's generation.
        who: Who did it, or asked for it, where that is known.
        words: What else there is to say.
    """

    number: int
    at_s: float
    event: str
    queue: str = ""
    key: str = ""
    slot: int = -1
    generation: int = 0
    who: str = ""
    words: str = ""


class GetEvents(Message, frozen=True, kw_only=True):
    """Asks what happened; answered by `Events`.

    Attributes:
        after: Number of the last moment that is known already; -1 for none: only what comes from now on.
        limit: How many at most, the oldest of them first.
        queue: Only what is about this queue; empty for all.
        key: Only what is about this key; empty for all.
        follow_s: Seconds to wait if nothing has happened yet.
    """

    after: Annotated[int, msgspec.Meta(ge=-1)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_MOMENTS)] = MAX_MOMENTS
    queue: str = ""
    key: str = ""
    follow_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_FOLLOW_S)] = 0.0


class Events(Message, frozen=True, kw_only=True):
    """What happened.

    Attributes:
        moments: In order.
        last: Number of the last moment that was looked at; to be told as `after` in the next question.
        oldest: Number of the oldest moment that is still kept; those before it are forgotten.
        now_s: The daemon's monotonic second.
        epoch: This run of the daemon.
    """

    moments: tuple[Moment, ...]
    last: int
    oldest: int
    now_s: float
    epoch: str
