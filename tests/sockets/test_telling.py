"""What a log record says, as text and as data."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import pytest

from forebay.sockets import tell, tell_failure, tell_object
from forebay.wire import Event

LOG = logging.getLogger("forebay.test")


@pytest.fixture
def handlers() -> Iterator[list[logging.Handler]]:
    """Handlers of the logger while the test runs; it begins with none of its own."""
    LOG.handlers = []
    yield LOG.handlers
    LOG.handlers = []


def test_a_record_says_the_event_and_its_fields_as_text_and_as_data(caplog: pytest.LogCaptureFixture) -> None:
    tell(LOG, logging.WARNING, Event.REFUSE, code="no_slot", count=3, is_last=True, names=["a", "b"], none=None)
    [record] = caplog.records
    assert record.getMessage() == "refuse code=no_slot count=3 is_last=True names=a,b none=None"
    told = record.__dict__
    assert told["event"] is Event.REFUSE
    assert told["event_name"] == "refuse"
    assert told["fields"] == {"code": "no_slot", "count": 3, "is_last": True, "names": ["a", "b"], "none": None}


def test_an_event_without_fields_is_its_word_alone(caplog: pytest.LogCaptureFixture) -> None:
    tell(LOG, logging.WARNING, Event.DRAIN)
    assert caplog.messages == ["drain"]


def test_seconds_are_written_to_the_microsecond(caplog: pytest.LogCaptureFixture) -> None:
    tell(LOG, logging.WARNING, Event.STAGE_PROMOTE, wait_prev_s=4e-6)
    assert caplog.messages == ["STAGE_PROMOTE wait_prev_s=0.000004"]


def test_a_field_of_a_name_that_tell_has_too_is_a_field(caplog: pytest.LogCaptureFixture) -> None:
    tell(LOG, logging.WARNING, Event.REFUSE, log="l", level="v", event="e", exc_info="x")
    assert caplog.messages == ["refuse log=l level=v event=e exc_info=x"]


def test_what_a_peer_says_begins_no_line_and_drives_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    key = "a\nrefuse\x1b[2J%s {x}\udc80"
    tell(LOG, logging.WARNING, Event.STALE, key=key, keys=[key])
    assert caplog.messages == [
        r"stale key=a\nrefuse\x1b[2J%s {x}\udc80 keys=a\nrefuse\x1b[2J%s {x}\udc80",
    ]


def test_a_record_can_carry_an_object_as_its_event(caplog: pytest.LogCaptureFixture) -> None:
    @dataclasses.dataclass(frozen=True)
    class Promoted:
        key: str

    tell_object(LOG, logging.WARNING, Event.STAGE_PROMOTE, Promoted("a"), key="a")
    [record] = caplog.records
    told = record.__dict__
    assert (told["event"], told["event_name"], told["fields"]) == (Promoted("a"), "STAGE_PROMOTE", {"key": "a"})


def test_a_failure_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ZeroDivisionError("on purpose")
    except ZeroDivisionError as error:
        tell_failure(LOG, logging.WARNING, Event.TRANSFER_FAILED, error)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert "in test_a_failure_is_told_with_its_traceback" in caplog.text


def test_below_the_level_nothing_is_made_of_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    class Watched:
        seen = False

        def __repr__(self) -> str:
            self.seen = True
            return "seen"

    for level, is_told in ((logging.DEBUG, False), (logging.WARNING, True)):
        watched = Watched()
        with caplog.at_level(logging.INFO):
            tell(LOG, level, Event.DRAIN, watched=watched)
        assert (watched.seen, caplog.messages) == (is_told, ["drain watched=seen"] * is_told)


def test_what_a_users_handler_raises_does_not_reach_whoever_tells(handlers: list[logging.Handler]) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())
            raise OSError("disk full")

    heard: list[str] = []
    handlers.append(Broken())
    tell(LOG, logging.WARNING, Event.DRAIN)
    assert heard == ["drain"]
