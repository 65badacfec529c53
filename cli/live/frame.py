"""A daemon's state as lines of a terminal."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from forebay.wire import SlotStatus, Status, on_one_line, printable

from ..queues import queue_table
from ..slots import slot_table
from ..status import mood
from ..words import age, counted, size
from .view import View

_KEYS: Final = "q quit  f freeze  s sort by {sort}  r reverse  arrows PgUp PgDn scroll  h help"
_HELP: Final = (
    "q            quit",
    "f, p, blank  freeze: what is shown stands still, and nothing is asked",
    "s            sort slots by the next of slot, age, bytes, state",
    "r            reverse their order",
    "arrows       scroll by a slot; PgUp and PgDn by a page",
    "h, ?         this help, or what was there before",
    "",
    "age s   seconds in the present state of the micro-batch",
    "with    the trainer that has the slot, or who sends what fills it",
    "held s  seconds since it was lent",
    "asks s  seconds for which the trainer has asked for more than it was lent",
)
_AROUND: Final = 7
"""Lines that are neither a slot nor a queue: two of the daemon, two headers, two blank ones, and the keys."""


class Kind(enum.Enum):
    """What a line is, for its style."""

    PLAIN = "plain"
    TITLE = "title"
    HEADER = "header"
    ALARM = "alarm"
    KEYS = "keys"


class Line(NamedTuple):
    """A line: what stands there, and what it is."""

    words: str
    kind: Kind = Kind.PLAIN


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """What came and went in a second, between two looks at one daemon."""

    published: float
    consumed: float
    received_bytes: float

    @classmethod
    def between(cls, before: Status | None, now: Status) -> Rates | None:
        """Returns them, or None if there is nothing to compare with: no look, another run, or no time between."""
        if before is None or before.epoch != now.epoch or now.uptime_s <= before.uptime_s:
            return None
        seconds = now.uptime_s - before.uptime_s

        def rate(counter: str) -> float:
            return (now.counters.get(counter, 0) - before.counters.get(counter, 0)) / seconds

        return cls(rate("published"), rate("finished_consumed"), rate("published_bytes"))

    def __str__(self) -> str:
        rate = size(round(self.received_bytes))
        return f"published {self.published:.1f}/s, {rate}/s, consumed {self.consumed:.1f}/s"


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """What there is to show.

    Attributes:
        status: What the daemon said last.
        rates: Since the time before; None if that is not known.
        away: Since when and why it says nothing; empty if it does.
    """

    status: Status
    rates: Rates | None = None
    away: str = ""


def plain_frame(shown: Shown, *, columns: int) -> str:
    """Shows all of it once, for a file or a pipe."""
    status = shown.status
    parts = [*_daemon(shown), Line(""), *_slots(status.slots, columns), Line(""), *_queues(status, columns)]
    return "".join(f"{line.words}\n" for line in parts)


def frame(shown: Shown, view: View, *, columns: int, lines: int) -> list[Line]:
    """Shows as much of it as fits.

    Args:
        shown: What there is.
        view: What of it is to be seen.
        columns: How wide a line may be.
        lines: How many there may be.
    """
    body = [Line(words) for words in _HELP] if view.is_helping else _body(shown, view, columns, lines)
    above = [*_daemon(shown), Line("")]
    keys = _KEYS.format(sort=view.sort.value)
    below = Line(f"FROZEN  {keys}" if view.is_frozen else keys, Kind.KEYS)
    body = (above + body)[: lines - 1]
    body += [Line("")] * (lines - 1 - len(body))
    return [Line(line.words[:columns], line.kind) for line in (*body, below)][-lines:]


def slot_rows(status: Status, lines: int) -> int:
    """Returns how many slots are shown at a time."""
    return max(1, lines - _AROUND - _queue_rows(status, lines))


def _queue_rows(status: Status, lines: int) -> int:
    return min(len(status.queues), max(1, (lines - _AROUND) // 3))


def _body(shown: Shown, view: View, columns: int, lines: int) -> list[Line]:
    status = shown.status
    rows = slot_rows(status, lines)
    slots = view.in_order(status.slots)
    # A pool may have become smaller, or the terminal larger.
    first = max(0, min(view.first, len(slots) - rows))
    queues = _queues(status, columns)
    return [
        *_slots(slots[first : first + rows], columns),
        Line(_left_out(first, rows, len(slots))),
        *queues[: 1 + _queue_rows(status, lines)],
    ]


def _left_out(first: int, rows: int, slots: int) -> str:
    return f"slots {first + 1} to {min(first + rows, slots)} of {slots}" if slots > rows else ""


def _daemon(shown: Shown) -> Iterator[Line]:
    status = shown.status
    words = f"daemon {status.peer.pid} on {printable(status.peer.host)}, up {age(status.uptime_s)}"
    if shown.away:
        yield Line(on_one_line(f"{words}: {shown.away}"), Kind.ALARM)
    else:
        yield Line(f"{words}, {mood(status)}{_memory(status)}", Kind.TITLE)
    waiting = counted(status.waiting_offers, "offer waits", "offers wait")
    yield Line(f"{shown.rates or 'rates not known yet'}; {waiting}")


def _memory(status: Status) -> str:
    if not status.private_bytes:
        return ""
    bound = f" of {size(status.max_private_bytes)}" if status.max_private_bytes else ""
    return f", {size(status.private_bytes)}{bound} private"


def _slots(slots: Sequence[SlotStatus], columns: int) -> list[Line]:
    return _lines(slot_table(slots, columns=columns, empty="-"))


def _queues(status: Status, columns: int) -> list[Line]:
    return _lines(queue_table(status.queues, columns=columns)) if status.queues else [Line("no queues")]


def _lines(text: str) -> list[Line]:
    return [Line(words, Kind.PLAIN if index else Kind.HEADER) for index, words in enumerate(text.splitlines())]
