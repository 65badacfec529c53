"""Lines of text stay as they were; lines of JSON are JSON, whatever is told."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sockets import JsonLines, TextLines, tell
from forebay.wire import Event

LOG = logging.getLogger("forebay.test_lines")
OWN = ["time", "level", "logger", "event", "message"]

TEXTS = st.text(st.characters(exclude_categories=[]))
VALUES = st.one_of(
    TEXTS,
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.binary(),
    st.lists(TEXTS),
    st.dictionaries(TEXTS, TEXTS),
)


class Kept(logging.Handler):
    """Keeps the last record."""

    def emit(self, record: logging.LogRecord) -> None:
        self.record = record


def record_of(event: Event, /, **fields: object) -> logging.LogRecord:
    kept = Kept()
    LOG.addHandler(kept)
    try:
        tell(LOG, logging.WARNING, event, **fields)
    finally:
        LOG.removeHandler(kept)
    return kept.record


def not_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def parsed(line: str) -> dict[str, Any]:
    """Reads a line as a strict reader would."""
    assert line.isascii()
    assert line.isprintable()
    told: dict[str, Any] = json.loads(line, parse_constant=not_json)
    json.dumps(told, ensure_ascii=False).encode()  # no half of a surrogate pair
    return told


NAMES = st.from_regex(r"[a-z_]{1,9}", fullmatch=True) | st.sampled_from(OWN)


@given(st.dictionaries(NAMES, VALUES))
def test_any_fields_are_one_line_of_json(fields: dict[str, object]) -> None:
    told = parsed(JsonLines().format(record_of(Event.REFUSE, **fields)))
    assert list(told)[: len(OWN)] == OWN
    assert (told["level"], told["logger"], told["event"]) == ("WARNING", LOG.name, "refuse")
    for name, value in fields.items():
        if name not in OWN and (value is None or isinstance(value, bool)):
            assert told[name] is value


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ('a\n{"event": "refuse"}', 'a\n{"event": "refuse"}'),
        ("\x1b[2J\x9b\u2028\u202e\x00", "\x1b[2J\x9b\u2028\u202e\x00"),
        ("\udc80 half", "\\udc80 half"),
        ("\U0001f30a", "\U0001f30a"),
        ("a" * 256, "a" * 256),
    ],
)
def test_a_key_arrives_whole_whatever_is_in_it(key: str, told: str) -> None:
    assert parsed(JsonLines().format(record_of(Event.STALE, key=key)))["key"] == told


def test_numbers_and_truth_values_stay_what_they_are() -> None:
    record = record_of(Event.STAGE_PROMOTE, count=3, wait_s=4e-6, is_last=True, none=None, names=["a", 1])
    told = parsed(JsonLines().format(record))
    assert {name: told[name] for name in told if name not in OWN} == {
        "count": 3,
        "wait_s": 4e-6,
        "is_last": True,
        "none": None,
        "names": ["a", 1],
    }


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 1 << 64, pytest.param(10**5000, id="long"), b"bytes", object]
)
def test_what_json_has_no_word_for_is_a_text(value: object) -> None:
    assert isinstance(parsed(JsonLines().format(record_of(Event.STALE, value=value)))["value"], str)


def test_no_field_passes_for_the_records_own() -> None:
    fields: dict[str, object] = dict.fromkeys([*OWN, "exception"], "forged")
    told = parsed(JsonLines().format(record_of(Event.STALE, **fields)))
    assert "forged" not in [told[name] for name in OWN if name != "message"]


def test_the_time_is_utc_with_milliseconds() -> None:
    record = record_of(Event.DRAIN)
    record.created, record.msecs = 1769860800.25, 250.0
    assert parsed(JsonLines().format(record))["time"] == "2026-01-31T12:00:00.250Z"
    assert TextLines().format(record).startswith("2026-01-31T12:00:00.250Z WARNING ")


def failed_record() -> logging.LogRecord:
    try:
        raise ZeroDivisionError("on\npurpose")
    except ZeroDivisionError:
        return logging.LogRecord("other", logging.ERROR, __file__, 1, "it %s", ("failed",), sys.exc_info())


def test_an_exception_is_a_text_in_the_same_line() -> None:
    told = parsed(JsonLines().format(failed_record()))
    assert (told["event"], told["message"]) == (None, "it failed")
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ZeroDivisionError: on\npurpose")


def test_text_is_time_level_logger_and_message() -> None:
    line = TextLines().format(record_of(Event.REFUSE, code="stale", words="too old"))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING forebay.test_lines refuse code=stale words=too old", line
    )
    assert TextLines().format(failed_record()).endswith("\nZeroDivisionError: on\npurpose")
