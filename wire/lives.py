"""Micro-batches' lives as spans of time; `life_reader` puts them together.

What is not known is not made up. A history forgets its oldest moments, and some things end without a word; a span
whose beginning or end nobody told lasts as long as it is known to have lasted, and says so.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Final

from .moments import Moment


class Phase(enum.StrEnum):
    """What a micro-batch is at, as far as the daemon knows."""

    WAITING = "waiting"
    FILLING = "filling"
    READY = "ready"
    LENT = "lent"
    QUARANTINED = "quarantined"
    ON_DEVICE = "on_device"


class End(enum.StrEnum):
    """How a span ends."""

    KNOWN = "known"
    OPEN = "open"
    LOST = "lost"


END_MEANINGS: Final = {
    End.KNOWN: "it ended then",
    End.OPEN: "it goes on",
    End.LOST: "it ended later, nobody told when",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One phase of a micro-batch.

    Attributes:
        phase: Which.
        began_at: Monotonic second; the first at which it is known to have lasted, if its beginning is not.
        ended_at: Monotonic second; the last at which it is known to have lasted, if its end is not.
        slot: The slot that it was in, or -1.
        generation: That slot's generation; 0 if it is not known.
        trainer: Who had it then; empty if nobody, or if that is not known.
        is_begin_known: Whether it began then, not before.
        end: Whether it ended then.
    """

    phase: Phase
    began_at: float
    ended_at: float
    slot: int = -1
    generation: int = 0
    trainer: str = ""
    is_begin_known: bool = True
    end: End = End.KNOWN


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What is known of one micro-batch.

    Attributes:
        queue: Its queue.
        key: Its key there.
        number: Of the first moment that tells of it.
        spans: Its phases, in order.
        outcome: How it ended, in the words of the log; empty if it did not, or nobody told.
        reason: Why.
        ended_at: Monotonic second of that; None with no outcome.
        sender: Who offered it; empty if that is not known.
        payload_bytes: Of its arrays, if they are known.
        policy_version: Of the policy that it was made with, if anybody said.
    """

    queue: str
    key: str
    number: int
    spans: tuple[Span, ...]
    outcome: str = ""
    reason: str = ""
    ended_at: float | None = None
    sender: str = ""
    payload_bytes: int | None = None
    policy_version: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a history tells.

    Attributes:
        lives: Of the micro-batches, in the order in which they are first heard of.
        incidents: All moments that are no mere step of a life.
        began_at: Monotonic second of the oldest moment that is known, or of now.
        now_s: Monotonic second at which all of it was told.
    """

    lives: tuple[Life, ...]
    incidents: tuple[Moment, ...]
    began_at: float
    now_s: float


def in_slots(lives: Iterable[Life]) -> dict[int, list[tuple[Life, Span]]]:
    """Returns what was in each slot, by its index, in order."""
    found: dict[int, list[tuple[Life, Span]]] = {}
    for life in lives:
        for span in life.spans:
            if span.slot >= 0:
                found.setdefault(span.slot, []).append((life, span))
    for spans in found.values():
        spans.sort(key=lambda each: (each[1].began_at, each[1].ended_at, each[1].generation))
    return found
