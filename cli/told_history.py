"""All that a daemon still knows to have happened, asked for in pages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from forebay.wire import MAX_MOMENTS, Events, GetEvents, Message, Moment

M = TypeVar("M", bound=Message)


class Asks(Protocol):
    """Whoever asks a daemon, such as `Conversation`."""

    def ask(self, request: Message, answer: type[M], what: str) -> Awaitable[M]:
        """Asks, and returns the answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class ToldHistory:
    """What a daemon told.

    Attributes:
        moments: In order, without a gap, of one run of the daemon.
        now_s: Its monotonic second up to which they are all.
        epoch: That run.
    """

    moments: tuple[Moment, ...]
    now_s: float
    epoch: str

    @property
    def has_forgotten(self) -> bool:
        """Whether older moments are forgotten."""
        return bool(self.moments) and self.moments[0].number > 1


async def ask_history(daemon: Asks, tell: Callable[[int], None] = lambda _: None) -> ToldHistory:
    """Asks for all moments up to now; those that happen meanwhile need not be among them.

    Args:
        daemon: That is asked.
        tell: Called with the number of moments so far, after each page.

    Raises:
        As `Conversation.ask`.
    """
    moments: list[Moment] = []
    epoch, until = "", math.inf
    while True:
        after = moments[-1].number if moments else 0
        page = await daemon.ask(GetEvents(after=after), Events, "what has happened")
        if page.epoch != epoch:  # another daemon by now: what the one before told is no part of it
            epoch, until = page.epoch, page.now_s
            moments.clear()
            if after:
                continue
        if moments and page.oldest > after + 1:  # what came next was forgotten meanwhile
            moments.clear()
        moments += page.moments
        tell(len(moments))
        if len(page.moments) < MAX_MOMENTS:
            return ToldHistory(tuple(moments), page.now_s, epoch)
        if moments[-1].at_s >= until:
            return ToldHistory(tuple(moments), moments[-1].at_s, epoch)
