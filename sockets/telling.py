"""The one way to log: an event of the vocabulary with its fields, as a line of text and as data on the record.

Each record carries `event_name` (the event's word), `fields` (a dict) and `event`: the `Event`, or an object that
says the same with types, where there is one.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from forebay.wire import Event, printable


def tell(log: logging.Logger, level: int, event: Event, /, **fields: object) -> None:
    """Logs an event. What a user's handler or filter raises does not reach whoever tells.

    Args:
        log: Where to.
        level: As in `logging`.
        event: What happened.
        **fields: More about it, by name: texts, numbers, lists of texts. Whatever peers say is made printable.
    """
    _write(log, level, event, fields, event)


def tell_object(log: logging.Logger, level: int, event: Event, carried: object, /, **fields: object) -> None:
    """Logs an event whose record carries an object of the caller's as `record.event`; else as `tell`."""
    _write(log, level, event, fields, carried)


def tell_failure(log: logging.Logger, level: int, event: Event, error: BaseException, /, **fields: object) -> None:
    """Logs an event with the traceback of an error; else as `tell`."""
    _write(log, level, event, fields, event, exc_info=error)


def line_of(event: Event, fields: dict[str, object]) -> str:
    """Returns an event as text: `event name=value ...`."""
    return " ".join((event, *(f"{name}={_shown(value)}" for name, value in fields.items())))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    return printable(",".join(map(str, value)) if isinstance(value, list) else value)


def _write(
    log: logging.Logger, level: int, event: Event, fields: dict[str, object], carried: object, **more: Any
) -> None:
    if not log.isEnabledFor(level):
        return
    extra = {"event": carried, "event_name": event.value, "fields": fields}
    line = line_of(event, fields)
    with contextlib.suppress(Exception):
        log.log(level, line, extra=extra, **more)
