"""What may follow the question mark behind a page's path."""

from __future__ import annotations

import urllib.parse
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

import msgspec

from forebay.wire import MAX_MOMENTS, printable

from .http_answers import Answer, plain

_MAX_FIELDS: Final = 8
MAX_TIMELINE_S: Final = 3600.0


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a page can be asked for, by name."""


class EventsQuery(Query, frozen=True):
    """What happened; as `GetEvents`.

    Attributes:
        after: Number of the last moment that is known already; -1 for none: only what comes from now on.
        limit: How many at most, the oldest of them first.
        queue: Only what is about this queue; empty for all.
        key: Only what is about this key; empty for all.
    """

    after: Annotated[int, msgspec.Meta(ge=-1)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_MOMENTS)] = MAX_MOMENTS
    queue: str = ""
    key: str = ""


class TimelineQuery(Query, frozen=True):
    """A timeline: the seconds before now of which it tells."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMELINE_S)] = 60.0


Q = TypeVar("Q", bound=Query)


def read_query(text: str, kind: type[Q]) -> Q | Answer:
    """Reads a query.

    Args:
        text: Any.
        kind: What it may ask for.

    Returns:
        What is asked for, or the answer that says what is wrong with it.
    """
    try:
        fields = urllib.parse.parse_qsl(text, True, True, errors="strict", max_num_fields=_MAX_FIELDS)
        return msgspec.convert(dict(fields), kind, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        names = ", ".join(kind.__struct_fields__)
        words = f"the query cannot be read: {printable(str(error))}; it may have {names}"
        return plain(HTTPStatus.BAD_REQUEST, words)
