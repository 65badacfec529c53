"""What has happened lately, for those who ask: the events of the log, also those below its level."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Mapping

from forebay.wire import Event, Moment, Peer, on_one_line, printable

_OF_THE_MOMENT = frozenset({"queue", "key", "slot", "generation", "peer", "pid", "host"})
_MAX_WORDS = 400
"""Characters of a moment's words: what is told of it, and what is kept of a refusal's words, which can be long."""

Noted = tuple[float, Event, Mapping[str, object]]


class History:
    """The last moments, up to a limit.

    What is noted is kept as it comes, and told in words only to those who ask: there are several moments to each
    micro-batch, and hardly ever anybody who wants to know.

    Args:
        limit: How many are kept.

    Attributes:
        last: Number of the last moment; 0 before the first.
    """

    def __init__(self, limit: int) -> None:
        self._kept: deque[Noted] = deque(maxlen=limit)
        self.last = 0

    def __repr__(self) -> str:
        return f"History({self.oldest} to {self.last})"

    @property
    def oldest(self) -> int:
        """Number of the oldest moment that is kept."""
        return self.last - len(self._kept) + 1

    def note(self, at: float, event: Event, fields: Mapping[str, object]) -> None:
        """Keeps a moment; the oldest one makes way.

        Args:
            at: Monotonic second.
            event: What happened.
            fields: What is to be said about it: `queue`, `key`, `slot`, `generation`, who did it as `peer`, `pid`
                and `host`; all others become words.
        """
        self.last += 1
        words = fields.get("words")
        if isinstance(words, str) and len(words) > _MAX_WORDS:
            # Peers can cause any number of them: what is kept of each is a bound on memory.
            fields = {**fields, "words": words[:_MAX_WORDS]}
        self._kept.append((at, event, fields))

    def after(self, number: int, limit: int, *, queue: str = "", key: str = "") -> tuple[tuple[Moment, ...], int]:
        """Returns the moments behind one, oldest first, and the number of the last that was looked at.

        Args:
            number: Of the moment that is known; one of another history counts as none.
            limit: How many at most.
            queue: Only those about this queue; empty for all.
            key: Only those about this key; empty for all.
        """
        return self.kept_after(number, len(self._kept)).told(limit, queue=queue, key=key)

    def kept_after(self, number: int, limit: int) -> Kept:
        """Returns the moments behind one, the oldest of them first, for any thread to tell.

        Args:
            number: Of the moment that is known; one of another history counts as none.
            limit: How many at most.
        """
        first = self.oldest if number > self.last else max(self.oldest, number + 1)
        behind = self.last - first + 1
        # From the end, near which those who ask again and again look.
        newest_first = itertools.islice(reversed(self._kept), max(0, behind - limit), behind)
        return Kept(first, tuple(newest_first)[::-1])


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """Moments as they were noted. Nothing of it ever changes.

    Attributes:
        first: Number of the first.
        noted: Monotonic second, event and fields of each, in order.
    """

    first: int
    noted: tuple[Noted, ...]

    @property
    def last(self) -> int:
        """Number of the last; the one before the first if there is none."""
        return self.first + len(self.noted) - 1

    def told(self, limit: int, *, queue: str = "", key: str = "") -> tuple[tuple[Moment, ...], int]:
        """Tells them in words, and the number of the last that was looked at; see `History.after`."""
        matching = (
            (number, noted)
            for number, noted in enumerate(self.noted, self.first)
            if (not key or noted[2].get("key") == key) and (not queue or noted[2].get("queue") == queue)
        )
        moments = tuple(_told(number, *noted) for number, noted in itertools.islice(matching, limit))
        return moments, moments[-1].number if len(moments) == limit else self.last


def _told(number: int, at: float, event: Event, fields: Mapping[str, object]) -> Moment:
    return Moment(
        number=number,
        at_s=at,
        event=event,
        queue=str(fields.get("queue", "")),
        key=str(fields.get("key", "")),
        slot=_integer(fields.get("slot", -1)),
        generation=_integer(fields.get("generation", 0)),
        who=str(_peer(fields)) if "peer" in fields else "",
        words=" ".join(_words(fields))[:_MAX_WORDS],
    )


def _peer(fields: Mapping[str, object]) -> Peer:
    return Peer(name=str(fields["peer"]), pid=_integer(fields["pid"]), host=str(fields["host"]))


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _words(fields: Mapping[str, object]) -> Iterator[str]:
    for name, value in fields.items():
        if name not in _OF_THE_MOMENT and value not in (None, ""):
            yield on_one_line(str(value)) if name in ("words", "reason") else f"{name}={printable(value)}"
