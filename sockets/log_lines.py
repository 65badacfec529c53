"""How a log record is written: as a line of text, or as one object of JSON."""

from __future__ import annotations

import json
import logging
import math
import time

from forebay.wire import printable

_DATE = "%Y-%m-%dT%H:%M:%S"


class TextLines(logging.Formatter):
    """`time level logger message`, times in UTC; a traceback follows on lines of its own."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", _DATE)


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `event`, `message`, `exception`, and the event's fields.

    All of it is ASCII, so whatever a peer named something, no byte of it begins a line or drives a terminal.
    `event` is null for what another library logged, and `exception` is there only when there was one.
    """

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        told = {
            "time": f"{self.formatTime(record, _DATE)}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": record.__dict__.get("event_name"),
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        # Its own come first, and again, to win: no field can pass for another time or logger.
        whole = {**told, **record.__dict__.get("fields", {}), **told}
        return json.dumps({name: _plain(value) for name, value in whole.items()}, allow_nan=False)


def _plain(value: object) -> object:
    """Returns what JSON can say, for any value; a text whole, but for what is no Unicode."""
    match value:
        case None | bool():
            return value
        case str():
            return value.encode(errors="backslashreplace").decode()
        case float() if math.isfinite(value):
            return float(value)
        case int() if abs(value) < 1 << 64:
            return int(value)
        case list():
            return [_plain(each) for each in value]
    return printable(value)
