"""What has happened lately, for those who ask: the events of the log, also those below its level."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping

from forebay.wire import Event, Moment, printable

_OF_THE_MOMENT = frozenset({"queue", "key", "slot", "generation", "peer", "pid", "host"})
_MAX_WORDS = 400


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
        self._kept: deque[tuple[float, Event, Mapping[str, object]]] = deque(maxlen=limit)
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
        self._kept.append((at, event, fields))

    def after(self, number: int, limit: int, *, queue: str = "", key: str = "") -> tuple[tuple[Moment, ...], int]:
        """Returns the moments behind one, oldest first, and the number of the last that was looked at.

        Args:
            number: Of the moment that is known; one of another history counts as none.
            limit: How many at most.
            queue: Only those about this queue; empty for all.
            key: Only those about this key; empty for all.
        """
        first = self.oldest if number > self.last else max(self.oldest, number + 1)
        kept = enumerate(itertools.islice(self._kept, first - self.oldest, None), first)
        matching = (
            (number, moment)
            for number, moment in kept
            if (not key or moment[2].get("key") == key) and (not queue or moment[2].get("queue") == queue)
        )
        moments = tuple(_told(number, *moment) for number, moment in itertools.islice(matching, limit))
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
        who=f"{fields['peer']} pid {fields['pid']} on {fields['host']}" if "peer" in fields else "",
        words=" ".join(_words(fields))[:_MAX_WORDS],
    )


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _words(fields: Mapping[str, object]) -> Iterator[str]:
    for name, value in fields.items():
        if name not in _OF_THE_MOMENT and value not in (None, ""):
            yield printable(value) if name in ("words", "reason") else f"{name}={printable(value)}"
