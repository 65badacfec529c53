"""The part of a past that a trace shows."""

from __future__ import annotations

import dataclasses

from forebay.wire import Moment
from forebay.wire.lives import Life, Past


@dataclasses.dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a past that a trace shows.

    Attributes:
        past: All of it.
        lives: Those shown.
        began_at: Monotonic second of its beginning.
    """

    past: Past
    lives: tuple[Life, ...]
    began_at: float

    @property
    def incidents(self) -> tuple[Moment, ...]:
        """Those of its time."""
        return tuple(moment for moment in self.past.incidents if moment.at_s >= self.began_at)


def last_of(past: Past, count: int, seconds: float | None = None) -> Excerpt:
    """Takes the last micro-batches of a past.

    Args:
        past: All of it.
        count: How many at most.
        seconds: Only of those of which something is known in this last time; None for any.
    """
    since = past.began_at if seconds is None else past.now_s - seconds
    lives = [life for life in past.lives if _last_at(life) >= since]
    lives = lives[-count:] if count else []
    begun = [span.began_at for life in lives for span in life.spans]
    began_at = min(begun) if begun and len(lives) < len(past.lives) else max(past.began_at, since)
    return Excerpt(past, tuple(lives), min([began_at, *begun]))


def _last_at(life: Life) -> float:
    at_s = max((span.ended_at for span in life.spans), default=0.0)
    return at_s if life.ended_at is None else max(at_s, life.ended_at)
