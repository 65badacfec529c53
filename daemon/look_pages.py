"""The page for people, and the JSON that it is drawn from: what there is, what happened, what was at what."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Final

import msgspec

from forebay.wire import Events
from forebay.wire.life_reader import past_of
from forebay.wire.lives import Life
from forebay.wire.plain_json import json_line

from .http_answers import Answer, Page, Request
from .inspecting import ToldMoments
from .ledger import Ledger
from .loop_questions import LoopQuestions
from .page_text import page_answer
from .queries import EventsQuery, TimelineQuery, read_query
from .shared_look import SharedLook

_FRESH_S: Final = 0.5
"""For so long a look is told to whoever asks next: many who look cost the loop no more than one."""

_MOST_LOOKED_AT: Final = 10_000
"""Moments among which one answer looks for those of a queue or a key."""

_TIMELINE_MOMENTS: Final = 1000
"""Some seven a micro-batch."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What the last micro-batches were at.

    Attributes:
        epoch: This run of the daemon.
        last: Number of the last moment that was looked at.
        began_at: Monotonic second before which nothing is known.
        now_s: The daemon's monotonic second.
        lives: Of the micro-batches, in the order in which they are first heard of.
    """

    epoch: str
    last: int
    began_at: float
    now_s: float
    lives: tuple[Life, ...]


class LookPages:
    """What people ask for.

    Args:
        questions: Reach the loop.
        ledger: Looked at by the loop alone, which hands out what never changes; all else is done here.
    """

    def __init__(self, questions: LoopQuestions, ledger: Ledger) -> None:
        self._questions = questions
        self._ledger = ledger
        self._page = page_answer()
        self._state = SharedLook(self._look_at_state, _FRESH_S)
        self._timeline = SharedLook(self._look_at_timeline, _FRESH_S)

    def by_path(self) -> dict[str, Page]:
        """Returns all pages."""
        return {
            "/": lambda _request: self._page,
            "/state.json": lambda _request: self._state.take(),
            "/events.json": self._events_json,
            "/timeline.json": self._timeline_json,
        }

    def _events_json(self, request: Request) -> Answer:
        asked = read_query(request.query, EventsQuery)
        return asked if isinstance(asked, Answer) else _json(self._events(asked))

    def _timeline_json(self, request: Request) -> Answer:
        asked = read_query(request.query, TimelineQuery)
        if isinstance(asked, Answer):
            return asked
        told = self._timeline.take()
        lives = tuple(life for life in told.lives if _ended_at(life) >= told.now_s - asked.seconds)
        return _json(msgspec.structs.replace(told, lives=lives))

    def _look_at_state(self) -> Answer:
        return _json(self._questions.ask(lambda: self._ledger.status(time.monotonic())))

    def _events(self, asked: EventsQuery) -> Events:
        is_filtered = bool(asked.queue or asked.key)
        most = 0 if asked.after < 0 else _MOST_LOOKED_AT if is_filtered else asked.limit
        told = self._told(asked.after, most)
        moments, last = told.kept.told(asked.limit, queue=asked.queue, key=asked.key)
        return Events(moments=moments, last=last, oldest=told.oldest, now_s=told.now_s, epoch=told.epoch)

    def _look_at_timeline(self) -> Timeline:
        told = self._told(-1, _TIMELINE_MOMENTS)
        moments, last = told.kept.told(_TIMELINE_MOMENTS)
        past = past_of(moments, told.now_s)
        return Timeline(epoch=told.epoch, last=last, began_at=past.began_at, now_s=past.now_s, lives=past.lives)

    def _told(self, after: int, limit: int) -> ToldMoments:
        return self._questions.ask(lambda: self._ledger.told(after, limit, time.monotonic()))


def _ended_at(life: Life) -> float:
    return max((span.ended_at for span in life.spans), default=life.ended_at or 0.0)


def _json(value: Any) -> Answer:
    return Answer(HTTPStatus.OK, json_line(value).encode(), "application/json")
